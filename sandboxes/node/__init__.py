"""The node agent's state: journals, held tries, slots, sandbox calls, the reaper. No network."""
