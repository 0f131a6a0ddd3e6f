"""Webhooks, from an event's row to a receiver on a real socket."""
