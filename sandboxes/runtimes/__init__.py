"""Runtimes: each gives the `Runtime` port of `sandboxes.ports` over one kind of isolation."""
