"""Tests: integration.environments."""
