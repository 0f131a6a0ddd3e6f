"""Sandboxes: the port, its runtimes, the agent inside the guest, and the node agent's parts."""
