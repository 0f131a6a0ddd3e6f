"""SQL without a tenant: leadership, leases, the coordinator's rows, recovery. Scheduler and workers only."""
