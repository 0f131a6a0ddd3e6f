"""Tests: unit.venusrl."""
