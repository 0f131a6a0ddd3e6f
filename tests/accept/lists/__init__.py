"""Lists at a million rollouts."""
