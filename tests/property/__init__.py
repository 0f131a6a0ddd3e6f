"""Property tests: random events and faults, invariants after every step."""
