"""The node agent's pure parts."""
