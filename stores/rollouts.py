"""Groups and rollouts of a project's jobs, for reading."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

group, rollout, member, job = t.rollout_group, t.rollout, t.batch_member, t.job


@dataclass(frozen=True, slots=True)
class Filters:
    """What of a list is wanted; None leaves a column open."""

    group_id: str | None = None
    step: int | None = None
    task_id: str | None = None
    purpose: str | None = None
    end: str | None = None
    verdict: str | None = None
    disposition: str | None = None
    reward_min: float | None = None
    reward_max: float | None = None


def _groups(project_id: str) -> Select[Any]:
    return (
        select(group, member.c.step.label("step"), member.c.staleness.label("staleness"))
        .join(job, job.c.id == group.c.job_id)
        .outerjoin(member, member.c.group_id == group.c.id)
        .where(job.c.project_id == project_id)
    )


async def groups(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    *,
    filters: Filters,
    request: PageRequest,
) -> PageOfRows:
    """Groups of a job."""
    query = _groups(project_id).where(job.c.id == job_id)
    if filters.step is not None:
        query = query.where(member.c.step == filters.step)
    if filters.task_id is not None:
        query = query.where(group.c.task_id == filters.task_id)
    if filters.purpose is not None:
        query = query.where(group.c.purpose == filters.purpose)
    if filters.disposition is not None:
        query = query.where(group.c.disposition == filters.disposition)
    return await fetch_page(connection, query, group.c.id, request)


async def find_group(
    connection: AsyncConnection, project_id: str, group_id: str
) -> Row[Any] | None:
    """A group of the project."""
    query = _groups(project_id).where(group.c.id == group_id)
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


def _rollouts(project_id: str) -> Select[Any]:
    return (
        select(rollout, group.c.purpose, group.c.task_id)
        .join(group, group.c.id == rollout.c.group_id)
        .join(job, job.c.id == rollout.c.job_id)
        .where(job.c.project_id == project_id)
    )


async def page(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    *,
    filters: Filters,
    request: PageRequest,
) -> PageOfRows:
    """Rollouts of a job."""
    query = _rollouts(project_id).where(rollout.c.job_id == job_id)
    equal = (
        (rollout.c.group_id, filters.group_id),
        (group.c.task_id, filters.task_id),
        (group.c.purpose, filters.purpose),
        (rollout.c.end, filters.end),
        (rollout.c.verdict, filters.verdict),
        (rollout.c.disposition, filters.disposition),
    )
    for column, value in equal:
        if value is not None:
            query = query.where(column == value)
    if filters.step is not None:
        query = query.join(member, member.c.group_id == group.c.id).where(
            member.c.step == filters.step
        )
    if filters.reward_min is not None:
        query = query.where(rollout.c.reward >= filters.reward_min)
    if filters.reward_max is not None:
        query = query.where(rollout.c.reward <= filters.reward_max)
    return await fetch_page(connection, query, rollout.c.id, request)


async def find(connection: AsyncConnection, project_id: str, rollout_id: str) -> Row[Any] | None:
    """A rollout of the project."""
    query = _rollouts(project_id).where(rollout.c.id == rollout_id)
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def tries(
    connection: AsyncConnection, project_id: str, rollout_id: str
) -> Sequence[Row[Any]]:
    """Ended tries of a rollout of the project."""
    query = (
        select(t.rollout_try)
        .join(rollout, rollout.c.id == t.rollout_try.c.rollout_id)
        .join(job, job.c.id == rollout.c.job_id)
        .where(job.c.project_id == project_id, rollout.c.id == rollout_id)
        .order_by(t.rollout_try.c["try"])
    )
    return (await connection.execute(query)).all()
