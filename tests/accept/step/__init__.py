"""What a step of the coordinator may cost."""
