"""`venus env eval` and `score`: a package's own loop and rewards, on the author's machine."""
