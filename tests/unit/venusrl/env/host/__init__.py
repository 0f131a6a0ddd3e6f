"""Tests: unit.venusrl.env.host."""
