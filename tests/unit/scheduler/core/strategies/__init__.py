"""Strategies: their hearts as plain functions, and what each decides through the coordinator."""
