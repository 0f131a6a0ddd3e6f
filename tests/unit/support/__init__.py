"""Tests: unit.support."""
