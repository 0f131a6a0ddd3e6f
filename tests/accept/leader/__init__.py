"""What a leader's death costs: by the clock, so on a machine that does nothing else."""
