"""Checkpoints: list, download, a look at what they generate; operations."""
