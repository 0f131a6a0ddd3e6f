"""What environments of a project's jobs printed, for reading: rows that name objects of lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t

output, job = t.environment_output, t.job


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which outputs of a job; None leaves a column open. `since` is the first id."""

    job_id: str
    rollout_id: str | None = None
    component: str | None = None
    since: str | None = None
    limit: int = 64


async def listed(
    connection: AsyncConnection, project_id: str, wanted: Wanted
) -> Sequence[Row[Any]]:
    """Outputs in the order of their first lines, from an id on."""
    query = (
        select(output)
        .join(job, job.c.id == output.c.job_id)
        .where(
            job.c.project_id == project_id,
            job.c.deleted_at.is_(None),
            output.c.job_id == wanted.job_id,
        )
        .order_by(output.c.id)
        .limit(wanted.limit)
    )
    for column, value in (
        (output.c.rollout_id, wanted.rollout_id),
        (output.c.component, wanted.component),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(output.c.id >= wanted.since)
    return (await connection.execute(query)).all()
