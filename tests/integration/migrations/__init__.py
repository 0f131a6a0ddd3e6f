"""Tests: integration.migrations."""
