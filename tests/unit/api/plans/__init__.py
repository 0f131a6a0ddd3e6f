"""Tests of api.plans."""
