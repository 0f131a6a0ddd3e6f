"""The recovery matrix: whatever dies, freezes or forgets while a job runs, the job ends whole."""
