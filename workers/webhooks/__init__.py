"""Delivering webhooks: a process that sends what is due and ends."""
