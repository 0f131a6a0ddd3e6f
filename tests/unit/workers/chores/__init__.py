"""Chores, without a database."""
