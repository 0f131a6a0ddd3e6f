"""Tests: unit.migrations."""
