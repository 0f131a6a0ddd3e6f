"""Whole jobs through the API of a running stack, small and quick."""
