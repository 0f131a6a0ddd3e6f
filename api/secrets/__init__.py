"""Secrets of a project: written, listed by name, deleted; never read back."""
