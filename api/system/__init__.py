"""Health, status, models of the registry, metrics for Prometheus."""
