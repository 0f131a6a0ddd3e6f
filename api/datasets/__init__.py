"""Datasets and their versions."""
