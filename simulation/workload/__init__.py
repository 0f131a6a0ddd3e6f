"""What the simulated rollouts do: turns, tokens and tools, the same for every strategy of a run."""
