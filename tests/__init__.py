"""Tests mirror the source tree; shared fixtures and helpers are in `tests.support`."""
