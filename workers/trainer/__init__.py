"""The trainer: streamed gradients of assigned groups, one update a step, checkpoints, recovery."""
