"""Tests: integration.workers.chores."""
