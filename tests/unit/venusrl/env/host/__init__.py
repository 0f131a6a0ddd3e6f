"""Tests: unit.venusrl.env."""
