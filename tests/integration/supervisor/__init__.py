"""Tests: integration.supervisor."""
