"""Tests of simulated workloads."""
