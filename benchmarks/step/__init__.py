"""What one `step` of the coordinator costs while 100,000 rollouts live: `python -m benchmarks.step`."""
