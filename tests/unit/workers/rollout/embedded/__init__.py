"""Tests: unit.workers.rollout.embedded."""
