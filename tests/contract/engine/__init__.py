"""Tests: contract.engine."""
