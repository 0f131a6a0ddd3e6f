"""Tests: the end-to-end benchmark."""
