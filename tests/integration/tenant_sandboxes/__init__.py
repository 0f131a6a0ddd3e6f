"""Sandboxes of tenants on a running platform."""
