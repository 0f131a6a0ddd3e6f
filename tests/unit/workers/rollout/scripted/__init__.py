"""Tests: unit.workers.rollout.scripted."""
