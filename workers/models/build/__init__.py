"""Scripts that make the built-in models: seeded, one thread, a few minutes at most."""
