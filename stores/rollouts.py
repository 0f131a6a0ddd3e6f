"""Groups and rollouts of a project's jobs, for reading: lists by filter, one with its whole history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, select
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
    """A whole disposition, `dropped(stale)`, or its kind, `dropped`."""
    bucket: str | None = None
    policy_version: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None


def _groups(project_id: str) -> Select[Any]:
    return (
        select(group, member.c.step.label("step"), member.c.staleness.label("staleness"))
        .join(job, job.c.id == group.c.job_id)
        .outerjoin(
            member,
            and_(member.c.attempt_id == group.c.attempt_id, member.c.group_id == group.c.id),
        )
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
    """Groups of a job; bounds of the reward are those of its mean."""
    query = _groups(project_id).where(job.c.id == job_id)
    equal = (
        (group.c.task_id, filters.task_id),
        (group.c.purpose, filters.purpose),
        (group.c.policy_version, filters.policy_version),
    )
    query = query.where(*_equal(equal), *_range(group.c.mean_reward, filters))
    if filters.disposition is not None:
        query = query.where(_disposed(group.c.disposition, filters.disposition))
    if filters.step is not None:
        query = query.where(group.c.id.in_(_of_step(job_id, filters.step)))
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
        select(rollout)
        .join(job, job.c.id == rollout.c.job_id)
        .where(job.c.project_id == project_id)
    )


def page_query(project_id: str, job_id: str, filters: Filters) -> Select[Any]:
    """Rollouts of a job by filter, without an order: a page adds it."""
    equal = (
        (rollout.c.group_id, filters.group_id),
        (rollout.c.task_id, filters.task_id),
        (rollout.c.purpose, filters.purpose),
        (rollout.c.end, filters.end),
        (rollout.c.verdict, filters.verdict),
        (rollout.c.bucket, filters.bucket),
        (rollout.c.oldest_version, filters.policy_version),
    )
    query = _rollouts(project_id).where(
        rollout.c.job_id == job_id, *_equal(equal), *_range(rollout.c.reward, filters)
    )
    if filters.disposition is not None:
        is_whole = "(" in filters.disposition
        column = rollout.c.disposition if is_whole else rollout.c.fate
        query = query.where(column == filters.disposition)
    if filters.step is not None:
        query = query.where(rollout.c.group_id.in_(_of_step(job_id, filters.step)))
    return query


async def page(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    *,
    filters: Filters,
    request: PageRequest,
) -> PageOfRows:
    """Rollouts of a job."""
    return await fetch_page(
        connection, page_query(project_id, job_id, filters), rollout.c.id, request
    )


def _equal(pairs: Sequence[tuple[Any, object]]) -> list[ColumnElement[bool]]:
    return [column == value for column, value in pairs if value is not None]


def _range(column: Any, filters: Filters) -> list[ColumnElement[bool]]:
    bounds = []
    if filters.reward_min is not None:
        bounds.append(column >= filters.reward_min)
    if filters.reward_max is not None:
        bounds.append(column <= filters.reward_max)
    return bounds


def _disposed(column: Any, disposition: str) -> ColumnElement[bool]:
    if "(" in disposition:
        return column == disposition  # type: ignore[no-any-return]
    # Between `trained` and `trained)`: `(` is the one character that follows a kind.
    return and_(column >= disposition, column < f"{disposition})")


def _of_step(job_id: str, step: int) -> Select[Any]:
    return select(member.c.group_id).where(member.c.job_id == job_id, member.c.step == step)


async def find(connection: AsyncConnection, project_id: str, rollout_id: str) -> Row[Any] | None:
    """A rollout of the project."""
    query = _rollouts(project_id).where(rollout.c.id == rollout_id)
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


@dataclass(frozen=True, slots=True)
class History:
    """All that happened to a rollout: ended tries, placements, its group, the step that used it."""

    tries: Sequence[Row[Any]]
    hops: Sequence[Row[Any]]
    group: Row[Any]
    step: Row[Any] | None
    """Batch membership, with the committed step's row where there is one."""


async def history(connection: AsyncConnection, found: Row[Any]) -> History:
    """History of a rollout that `find` gave."""
    rows = []
    for table, order in ((t.rollout_try, "try"), (t.rollout_hop, "hop")):
        query = select(table).where(table.c.rollout_id == found.id).order_by(table.c[order])
        rows.append((await connection.execute(query)).all())
    its_group = (await connection.execute(select(group).where(group.c.id == found.group_id))).one()
    step = t.train_step
    query = (
        select(
            member,
            step.c.weights_sha,
            step.c.learning_rate,
            step.c.diverged,
            step.c.created_at.label("committed_at"),
        )
        .outerjoin(
            step, and_(step.c.attempt_id == member.c.attempt_id, step.c.step == member.c.step)
        )
        .where(member.c.attempt_id == found.attempt_id, member.c.group_id == found.group_id)
    )
    return History(*rows, group=its_group, step=(await connection.execute(query)).first())
