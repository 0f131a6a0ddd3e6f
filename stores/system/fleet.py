"""Which of a node agent's tries and attempts nobody owns any more, for its reaper."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, RolloutId
from domain.states import JobState
from stores import tables as t

HELD_BY_NOBODY = (JobState.PAUSED.value, JobState.CANCELLED.value)
"""States in which a job holds no sandbox, even where its attempt may go on later."""


async def owned_tries(
    connection: AsyncConnection, rollouts: Sequence[RolloutId]
) -> dict[RolloutId, int]:
    """The wanted try of each open rollout whose attempt runs; earlier tries have no owner."""
    query = (
        select(t.rollout.c.id, t.rollout.c["try"])
        .join(t.attempt, t.attempt.c.id == t.rollout.c.attempt_id)
        .join(t.job, t.job.c.id == t.rollout.c.job_id)
        .where(
            t.rollout.c.id.in_(rollouts),
            t.rollout.c.closed_at.is_(None),
            t.attempt.c.ended_at.is_(None),
            t.job.c.state.not_in(HELD_BY_NOBODY),
        )
    )
    return {RolloutId(row[0]): row[1] for row in await connection.execute(query)}


async def owned_attempts(
    connection: AsyncConnection, attempts: Sequence[AttemptId]
) -> set[AttemptId]:
    """Attempts that run."""
    query = (
        select(t.attempt.c.id)
        .join(t.job, t.job.c.id == t.attempt.c.job_id)
        .where(
            t.attempt.c.id.in_(attempts),
            t.attempt.c.ended_at.is_(None),
            t.job.c.state.not_in(HELD_BY_NOBODY),
        )
    )
    return {AttemptId(row[0]) for row in await connection.execute(query)}
