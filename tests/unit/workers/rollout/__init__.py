"""Tests: workers.rollout."""
