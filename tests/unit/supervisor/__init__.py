"""Tests: unit.supervisor."""
