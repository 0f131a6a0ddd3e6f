"""The node agent's state."""
