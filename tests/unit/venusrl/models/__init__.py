"""Unit tests of the wire models."""
