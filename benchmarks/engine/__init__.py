"""What the embedded engine gives on one core, beside what else there is: `python -m benchmarks.engine`."""
