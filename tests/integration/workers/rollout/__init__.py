"""Tests: integration.workers.rollout."""
