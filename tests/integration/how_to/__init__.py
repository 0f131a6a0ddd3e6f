"""Tests: integration.how_to."""
