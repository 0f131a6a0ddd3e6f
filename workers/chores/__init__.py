"""Short idempotent chores run by Celery."""
