"""Webhooks: where events of a project are sent, and what became of them."""
