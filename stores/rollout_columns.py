"""Columns and indexes by which groups and rollouts are found.

Each equality filter has an index (job, column, id, reward): it gives a page in the order of the
cursor without a sort, however many rows match, and leaves out other rewards unread. Columns that
were the group's are repeated on the rollout, for a page that joins nothing. `fate`, `bucket` and
`reward_bin` are generated: no writer can get them wrong.
"""

from bisect import bisect_right
from typing import Any, Final

from sqlalchemy import Column, Computed, Index, Integer, Text, text

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


REWARD_BOUNDS: Final = (
    *(-100.0, -10.0, -2.0, -1.0, -0.5, 0.0, 1e-06),
    *(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.000001, 2.0, 5.0, 10.0, 100.0),
)
"""Lower ends of the bins of rewards. A page of a range merges its bins, each in the order of ids, so
that it is as quick for rewards that only late rollouts reach; 0 and 1, most frequent, stand alone."""

REWARD_BIN: Final = (
    f"width_bucket(reward, '{{{','.join(map(repr, REWARD_BOUNDS))}}}'::double precision[])"
)


RETRIED: Final = "try > 1"
"""A try of it failed, whatever became of it then."""


def reward_bins(low: float | None, high: float | None) -> range:
    """Bins that a range of rewards touches."""
    first = 0 if low is None else bisect_right(REWARD_BOUNDS, low)
    last = len(REWARD_BOUNDS) if high is None else bisect_right(REWARD_BOUNDS, high)
    return range(first, last + 1)


def fate_column() -> Column[str]:
    """Kind of the row's disposition."""
    return Column("fate", Text, Computed(FATE, persisted=True))


def ledger_columns() -> tuple[Column[Any], ...]:
    """What a rollout repeats of its group, and what follows from its fate."""
    return (
        Column("purpose", Text, nullable=False, server_default="train"),
        Column("task_id", Text, nullable=False, server_default=""),
        fate_column(),
        Column("bucket", Text, Computed(BUCKET, persisted=True)),
        Column("reward_bin", Integer, Computed(REWARD_BIN, persisted=True)),
    )


def indexes_of_rollouts() -> tuple[Index, ...]:
    """One for each filter of a job's rollouts."""
    filters = (
        *("task_id", "purpose", "end", "verdict", "disposition"),
        *("fate", "bucket", "oldest_version", "reward_bin"),
    )
    return (
        Index(None, "job_id", "id"),
        Index("ix_rollout_retried", "job_id", "id", postgresql_where=text(RETRIED)),
        *(Index(f"ix_rollout_by_{one}", "job_id", one, "id", "reward") for one in filters),
    )


def indexes_of_groups() -> tuple[Index, ...]:
    """One for each filter of a job's groups."""
    filters = ("task_id", "purpose", "disposition", "fate", "policy_version")
    return (
        Index("ix_rollout_group_by_reward", "job_id", "id", "mean_reward"),
        *(
            Index(f"ix_rollout_group_by_{one}", "job_id", one, "id", "mean_reward")
            for one in filters
        ),
    )
