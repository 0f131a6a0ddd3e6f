"""Tests: the command line against a real gateway."""
