"""Adapters: other environment collections behind the same port; they run inside the process."""
