"""Tests: whole jobs and measured times."""
