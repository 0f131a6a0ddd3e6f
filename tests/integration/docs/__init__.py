"""What the documentation shows, run."""
