"""Tests: integration.infra."""
