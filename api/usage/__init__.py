"""Usage: seconds by resource, cut into hours or days."""
