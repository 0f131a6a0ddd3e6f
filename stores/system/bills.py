"""The ledger: an attempt's bill is written once, when it has ended and nothing of it is held any more."""

from datetime import timedelta
from typing import Final

from sqlalchemy import exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId
from stores import bill
from stores import tables as t

SETTLED_AT_ONCE: Final = 4
"""Attempts of one pass: reading a long attempt's facts takes a second or two."""

FATES_WITHIN: Final = timedelta(minutes=10)
"""After it, groups that an attempt left open (its job failed with a defect of ours) stay `pending`."""


async def settle(connection: AsyncConnection) -> list[AttemptId]:
    """Append the lines of attempts that have ended; returns them. Repeating it is harmless."""
    attempt, host, box = t.attempt, t.host_interval, t.sandbox_interval
    holds_host = exists().where(host.c.attempt_id == attempt.c.id, host.c.ended_at.is_(None))
    holds_sandbox = exists().where(box.c.attempt_id == attempt.c.id, box.c.ended_at.is_(None))
    has_open = exists().where(
        t.rollout_group.c.attempt_id == attempt.c.id, t.rollout_group.c.disposition == "pending"
    )
    query = (
        select(attempt.c.id, attempt.c.job_id)
        .where(
            attempt.c.ended_at.is_not(None),
            attempt.c.billed_at.is_(None),
            ~holds_host,
            ~holds_sandbox,
            or_(~has_open, attempt.c.ended_at < func.now() - FATES_WITHIN),
        )
        .order_by(attempt.c.id)
        .limit(SETTLED_AT_ONCE)
        .with_for_update(skip_locked=True, of=attempt)
    )
    rows = (await connection.execute(query)).all()
    for row in rows:
        await _append(connection, row.job_id, row.id)
    return [AttemptId(row.id) for row in rows]


async def _append(connection: AsyncConnection, job_id: str, attempt_id: str) -> None:
    lines = [
        {
            "job_id": job_id,
            "attempt_id": attempt_id,
            "resource": line.resource.value,
            "bucket": line.bucket.value,
            "seconds": line.seconds,
            "rollouts": line.rollouts,
        }
        for line in await bill.compute(connection, attempt_id)
    ]
    if lines:
        await connection.execute(insert(t.bill_line), lines)
    await connection.execute(
        update(t.attempt).where(t.attempt.c.id == attempt_id).values(billed_at=func.now())
    )
