"""Tests: unit.environments."""
