"""Bills of jobs, for reading."""
