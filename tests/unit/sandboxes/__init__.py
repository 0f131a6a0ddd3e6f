"""Sandboxes without a sandbox."""
