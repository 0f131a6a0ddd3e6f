"""Tests: unit.environments.adapters."""
