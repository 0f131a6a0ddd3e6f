"""Tests: jobs of the gateway."""
