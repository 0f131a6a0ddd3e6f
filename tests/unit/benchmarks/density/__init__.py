"""The density run: what agents do, and how two runs are compared."""
