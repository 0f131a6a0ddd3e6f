"""Sandboxes of tenants on this node: claimed from their rows, acted on, served at the node's door."""
