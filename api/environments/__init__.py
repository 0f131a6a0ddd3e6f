"""Environments and their versions."""
