"""Tests: unit.venusrl.evaluation."""
