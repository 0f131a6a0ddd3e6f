"""Sandboxes of a project, and their templates."""
