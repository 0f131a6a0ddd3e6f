"""Whether a full node changes results: the same rollouts a group at a time and as many as are admitted."""
