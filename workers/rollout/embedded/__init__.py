"""The embedded torch engine: continuous batching over a key-value cache, in one thread."""
