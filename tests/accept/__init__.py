"""Whole jobs and measured times; `make accept` runs these."""
