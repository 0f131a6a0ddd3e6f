"""Environments on the platform's side: packages, their sandboxed process, checks, adapters."""
