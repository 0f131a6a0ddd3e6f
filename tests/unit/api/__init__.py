"""Tests: the gateway."""
