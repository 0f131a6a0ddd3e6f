"""Schema history: Alembic revisions, and the upgrade that `venus up` and the tests run."""
