"""Tests: the pure core of the sandbox pool."""
