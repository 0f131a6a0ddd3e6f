"""Tests: unit.workers.rollout.kv_transfer."""
