"""Columns and indexes by which groups and rollouts are found.

Each equality filter has an index (job, column, id): it gives a page in the order of the cursor
without a sort, however many rows match. Columns that were the group's are repeated on the rollout,
for a page that joins nothing. `fate` and `bucket` are generated: no writer can get them wrong.
"""

from typing import Final

from sqlalchemy import Column, Computed, Index, Text

FATE: Final = "split_part(disposition, '('::text, 1)"
"""The kind of a disposition: `trained(3)` is `trained`. Spelled as Postgres shows it, so that a
comparison with a database finds no difference."""

BUCKET: Final = """CASE
    WHEN ("end" = ANY (ARRAY['env_failed'::text, 'sandbox_lost'::text, 'engine_lost'::text])) \
THEN 'infrastructure'::text
    WHEN (disposition = ANY (ARRAY['dropped(payload_lost)'::text, 'dropped(unsalvageable)'::text])) \
THEN 'infrastructure'::text
    WHEN (purpose = 'evaluation'::text) THEN 'evaluation'::text
    WHEN (split_part(disposition, '('::text, 1) = 'trained'::text) THEN 'trained'::text
    WHEN (disposition = 'dropped(zero_variance)'::text) THEN 'zero_variance'::text
    WHEN (disposition = 'dropped(stale)'::text) THEN 'stale'::text
    WHEN (disposition = 'dropped(diverged)'::text) THEN 'diverged'::text
    WHEN (disposition = 'pending'::text) THEN 'pending'::text
    WHEN ((disposition = 'dropped(cancelled)'::text) OR ("end" = 'cancelled'::text)) \
THEN 'cancelled'::text
    WHEN ("end" = ANY (ARRAY['truncated'::text, 'turn_limit'::text, 'context_overflow'::text, \
'timeout'::text])) THEN 'truncated'::text
    ELSE 'unscorable'::text
END"""
"""The bill's bucket of a rollout (`domain.billing.Bucket`); the first line that holds decides."""


def ledger_columns() -> tuple[Column[str], ...]:
    """What a rollout repeats of its group, and what follows from its fate."""
    return (
        Column("purpose", Text, nullable=False, server_default="train"),
        Column("task_id", Text, nullable=False, server_default=""),
        Column("fate", Text, Computed(FATE, persisted=True)),
        Column("bucket", Text, Computed(BUCKET, persisted=True)),
    )


def indexes_of_rollouts() -> tuple[Index, ...]:
    """One for each filter of a job's rollouts; the reward's range is read off the index alone."""
    return (
        Index(None, "job_id", "id"),
        *(
            Index(None, "job_id", column, "id")
            for column in (
                "task_id",
                "purpose",
                "end",
                "verdict",
                "disposition",
                "fate",
                "bucket",
                "oldest_version",
            )
        ),
        Index("ix_rollout_reward", "job_id", "id", "reward"),
    )


def indexes_of_groups() -> tuple[Index, ...]:
    """One for each filter of a job's groups."""
    return (
        Index(None, "job_id", "id"),
        *(
            Index(None, "job_id", column, "id")
            for column in ("task_id", "purpose", "disposition", "policy_version")
        ),
    )
