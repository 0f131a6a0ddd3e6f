"""Tests: integration.scheduler."""
