"""The host's side of the guest protocol."""
