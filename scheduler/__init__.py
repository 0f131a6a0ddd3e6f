"""The scheduler process: a pure core that decides, and a shell that reads facts and executes commands."""
