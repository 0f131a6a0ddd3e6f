"""Tests of the sandbox benchmark."""
