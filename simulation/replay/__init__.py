"""Replay of recorded event logs: `python -m simulation.replay LOG`."""
