"""How much of its budget a job used, from its own events."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Double, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import JobId
from stores import tables as t

event = t.job_event

HELD_STATES: Final = ("provisioning", "running", "pausing", "cancelling")
"""States in which a job holds hosts. A resuming one may still wait for them in the queue."""


async def held_seconds(connection: AsyncConnection, jobs: Sequence[JobId]) -> dict[JobId, float]:
    """Seconds in which each job held hosts, over all its attempts."""
    until = func.lead(event.c.created_at).over(partition_by=event.c.job_id, order_by=event.c.seq)
    spans = (
        select(
            event.c.job_id,
            event.c.body["state"].astext.label("state"),
            (func.coalesce(until, func.now()) - event.c.created_at).label("span"),
        )
        .where(event.c.job_id.in_(jobs), event.c.type == "job.state")
        .subquery()
    )
    query = (
        select(spans.c.job_id, func.sum(func.extract("epoch", spans.c.span)))
        .where(spans.c.state.in_(HELD_STATES))
        .group_by(spans.c.job_id)
    )
    return {JobId(row[0]): float(row[1]) for row in await connection.execute(query)}


async def is_warned(
    connection: AsyncConnection, job_id: JobId, type: str, max_wall_hours: float
) -> bool:
    """Whether the job was warned about this limit."""
    said = cast(event.c.body["max_wall_hours"].astext, Double)
    query = select(event.c.seq).where(
        event.c.job_id == job_id, event.c.type == type, said == max_wall_hours
    )
    return (await connection.execute(query.limit(1))).first() is not None
