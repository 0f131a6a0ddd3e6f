"""Tests of simulated sandbox nodes."""
