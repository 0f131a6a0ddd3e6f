"""Tests: the scheduling benchmark."""
