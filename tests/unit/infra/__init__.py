"""Tests: unit.infra."""
