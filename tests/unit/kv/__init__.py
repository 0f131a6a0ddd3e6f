"""The KV rules of engines."""
