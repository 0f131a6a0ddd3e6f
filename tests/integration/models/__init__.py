"""Tests: integration.models."""
