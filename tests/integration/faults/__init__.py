"""Tests: faults that people meet, on a whole running platform, seen through the public API."""
