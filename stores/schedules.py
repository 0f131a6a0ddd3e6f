"""What a project's user sees of a job's schedule."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t

job, schedule, group = t.job, t.job_schedule, t.job_schedule_group


async def find(connection: AsyncConnection, project_id: str, job_id: str) -> Row[Any] | None:
    """Head and profile of the job's schedule, if a leader wrote one."""
    query = (
        select(schedule)
        .join(job, job.c.id == schedule.c.job_id)
        .where(job.c.project_id == project_id, job.c.id == job_id, job.c.deleted_at.is_(None))
    )
    return (await connection.execute(query)).first()


async def groups(
    connection: AsyncConnection, project_id: str, job_id: str, group_ids: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Bodies of these groups by id; those that went meanwhile are left out."""
    query = (
        select(group.c.group_id, group.c.body)
        .join(job, job.c.id == group.c.job_id)
        .where(
            job.c.project_id == project_id,
            group.c.job_id == job_id,
            group.c.group_id.in_(group_ids),
        )
    )
    return {row.group_id: dict(row.body) for row in await connection.execute(query)}


async def staleness(
    connection: AsyncConnection, project_id: str, job_id: str
) -> Sequence[tuple[int, int]]:
    """(staleness, groups) over all steps of the job's present attempt."""
    member = t.batch_member
    query = (
        select(member.c.staleness, func.count())
        .join(job, job.c.attempt_id == member.c.attempt_id)
        .where(job.c.project_id == project_id, job.c.id == job_id)
        .group_by(member.c.staleness)
        .order_by(member.c.staleness)
    )
    return [(row[0], row[1]) for row in await connection.execute(query)]
