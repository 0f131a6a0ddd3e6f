"""What runs inside a sandbox; nothing here is imported by the host."""
