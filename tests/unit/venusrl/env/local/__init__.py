"""Tests: unit.venusrl.env.local."""
