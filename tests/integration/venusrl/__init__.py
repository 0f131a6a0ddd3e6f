"""Tests: integration.venusrl."""
