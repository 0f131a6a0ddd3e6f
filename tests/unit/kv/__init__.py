"""Unit tests of the KV rules."""
