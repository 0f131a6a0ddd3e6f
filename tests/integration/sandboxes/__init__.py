"""Sandboxes of the process runtime, from the inside and the outside."""
