"""Which checkpoints `keep_last` and `keep_best` keep: by the same rules for a trainer, after each one
that it writes, and for the leader, once an attempt and its last evaluation are over.

Never fewer than two stay; neither what its user keeps nor what something else needs goes.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, CheckpointId, JobId
from stores import events
from stores import tables as t
from stores.system import checkpoints as store
from stores.system.checkpoints import CheckpointRow

CHECKPOINTS_MIN: Final = 2
"""Recovery needs the newest and, should that one be unreadable, the one before."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How many of an attempt's checkpoints stay: the newest ones, and the best ones besides."""

    last: int
    best: int


async def surplus_of(
    connection: AsyncConnection, job_id: JobId, attempt_id: AttemptId, keep: Keep, *, is_over: bool
) -> tuple[CheckpointRow, ...]:
    """Ready checkpoints of an attempt that may go; the job's are locked until the transaction ends.

    Of an attempt that is over no evaluation is still to come.
    """
    kept = await store.starting_points(connection, job_id)
    rows = await store.of_attempt(connection, attempt_id)
    if keep.best > 0:
        scores = await store.evaluation_scores(connection, attempt_id)
        if is_over:
            scores = {step: score for step, score in scores.items() if score is not None}
        kept |= best_checkpoints(rows, scores, keep.best)
    return surplus_checkpoints(rows, kept, keep.last)


async def expire_surplus(connection: AsyncConnection, attempt_id: AttemptId) -> list[CheckpointId]:
    """Expire what an attempt that has ended leaves beyond what its job keeps; a chore deletes files."""
    query = (
        select(t.attempt.c.job_id, t.job.c.spec["checkpoints"].label("spec"))
        .join(t.job, t.job.c.id == t.attempt.c.job_id)
        .where(t.attempt.c.id == attempt_id)
    )
    row = (await connection.execute(query)).one()
    spec = row.spec or {}
    keep = Keep(spec.get("keep_last", CHECKPOINTS_MIN), spec.get("keep_best", 0))
    job = JobId(row.job_id)
    gone = await surplus_of(connection, job, attempt_id, keep, is_over=True)
    for one in gone:
        await store.mark_expired(connection, one.checkpoint_id)
    for one in gone:
        body = {"checkpoint_id": one.checkpoint_id, "step": one.step, "cause": "keep_last"}
        await events.append(connection, job, "checkpoint.expired", body)
    return [one.checkpoint_id for one in gone]


def best_checkpoints(
    rows: Sequence[CheckpointRow], scores: Mapping[int, float | None], count: int
) -> set[CheckpointId]:
    """The `count` ready checkpoints with the best scores, and those whose evaluation is not over yet.

    Of equal scores the newer one counts. A step that was not evaluated is never a best one.
    """
    ready = [row for row in rows if row.state == "ready" and row.step in scores]
    scored = [(score, row) for row in ready if (score := scores[row.step]) is not None]
    scored.sort(key=lambda pair: (-pair[0], -pair[1].step, pair[1].checkpoint_id))
    best = {row.checkpoint_id for _, row in scored[:count]}
    return best | {row.checkpoint_id for row in ready if scores[row.step] is None}


def surplus_checkpoints(
    rows: Sequence[CheckpointRow], kept: AbstractSet[CheckpointId], keep_last: int
) -> tuple[CheckpointRow, ...]:
    """Ready checkpoints, newest first in `rows`, that may go."""
    ready = [row for row in rows if row.state == "ready"]
    beyond = ready[max(keep_last, CHECKPOINTS_MIN) :]
    return tuple(row for row in beyond if row.checkpoint_id not in kept)
