"""Scenarios that are measured, never asserted by tests on wall time."""
