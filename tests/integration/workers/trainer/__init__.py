"""Tests: integration.workers.trainer."""
