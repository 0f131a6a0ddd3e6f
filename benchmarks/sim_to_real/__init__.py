"""How far plans are from real jobs: short jobs on the embedded stack, each forecast before it runs."""
