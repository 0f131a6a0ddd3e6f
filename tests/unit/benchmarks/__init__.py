"""Tests of the benchmark: fixed numbers and workloads."""
