"""Simulated sandbox nodes: demand from memory traces or a generator fitted to them, ours and baselines."""
