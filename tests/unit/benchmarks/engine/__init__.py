"""Tests: the engine's benchmark."""
