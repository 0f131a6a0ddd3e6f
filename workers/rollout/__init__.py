"""The rollout host: engines behind one port, and the turn loops of their rollouts."""
