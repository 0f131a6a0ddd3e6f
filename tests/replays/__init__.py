"""Recorded event lists of bugs that were found: each must stay right."""
