"""Groups, rollouts and trajectories, for reading."""
