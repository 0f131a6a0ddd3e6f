"""Tests: integration.workers."""
