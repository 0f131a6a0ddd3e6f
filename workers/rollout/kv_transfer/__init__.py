"""Pages of a rollout on their way from one engine process to another."""
