"""Unit tests of the coordinator's core, one file a module."""
