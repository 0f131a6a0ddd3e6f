"""Tests: unit.workers.models."""
