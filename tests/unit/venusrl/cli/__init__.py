"""Tests: the command line."""
