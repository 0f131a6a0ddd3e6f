"""The sandbox pool on recorded memory: what admission by use and page sharing save, and who is hurt."""
