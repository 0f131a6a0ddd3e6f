"""The sandbox node agent's host: forks, turns, seals and grades for all jobs of one node."""
