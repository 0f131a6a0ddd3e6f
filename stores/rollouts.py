"""Groups and rollouts of a project's jobs, for reading: lists by filter, one with its whole history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, ScalarSelect, Select, Table, and_, false, select, union_all
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.paging import PageOfRows, PageRequest, beyond, fetch_page, limit_of
from stores.rollout_columns import reward_bins

ANY_PAGE: Final = PageRequest()

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
    retried: bool | None = None
    """Whether a try of it failed."""
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
        .where(job.c.project_id == project_id, job.c.deleted_at.is_(None))
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
        query = query.where(_disposed(group, filters.disposition))
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


def _environment() -> ScalarSelect[int]:
    """The rollout's environment, which only its group has.

    By the group's primary key, for the rows of the page alone: a join would be open to plans that
    read all groups.
    """
    query = select(group.c.environment).where(group.c.id == rollout.c.group_id)
    return query.correlate(rollout).scalar_subquery()


def _rollouts(project_id: str) -> Select[Any]:
    return (
        select(rollout, _environment().label("environment"))
        .join(job, job.c.id == rollout.c.job_id)
        .where(job.c.project_id == project_id, job.c.deleted_at.is_(None))
    )


def page_query(
    project_id: str, job_id: str, filters: Filters, request: PageRequest = ANY_PAGE
) -> Select[Any]:
    """Rollouts of a job by filter, without the order and the end of a page."""
    narrow = _equal(
        (
            (rollout.c.group_id, filters.group_id),
            (rollout.c.task_id, filters.task_id),
            (rollout.c.purpose, filters.purpose),
            (rollout.c.end, filters.end),
            (rollout.c.verdict, filters.verdict),
            (rollout.c.bucket, filters.bucket),
            (rollout.c.oldest_version, filters.policy_version),
        )
    )
    if filters.disposition is not None:
        narrow.append(_disposed(rollout, filters.disposition))
    if filters.step is not None:
        narrow.append(rollout.c.group_id.in_(_of_step(job_id, filters.step)))
    if filters.retried is not None:
        narrow.append(rollout.c["try"] > 1 if filters.retried else rollout.c["try"] <= 1)
    bounds = _range(rollout.c.reward, filters)
    query = _rollouts(project_id).where(rollout.c.job_id == job_id)
    if bounds and not narrow:
        return query.where(rollout.c.id.in_(_in_bins(job_id, filters, bounds, request)))
    return query.where(*narrow, *bounds)


def _in_bins(
    job_id: str, filters: Filters, bounds: Sequence[ColumnElement[bool]], request: PageRequest
) -> Select[Any]:
    """Ids of one page of a range of rewards: the first ones of each bin, in the page's order."""
    order = rollout.c.id.desc() if request.descending else rollout.c.id
    after = [] if request.after is None else [beyond(rollout.c.id, request)]
    parts = [
        select(rollout.c.id)
        .where(rollout.c.job_id == job_id, rollout.c.reward_bin == number, *bounds, *after)
        .order_by(order)
        .limit(limit_of(request) + 1)
        .subquery()
        for number in reward_bins(filters.reward_min, filters.reward_max)
    ]
    if not parts:
        return select(rollout.c.id).where(false())
    merged = union_all(*(select(part.c.id) for part in parts)).subquery()
    return select(merged.c.id)


async def page(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    *,
    filters: Filters,
    request: PageRequest,
) -> PageOfRows:
    """Rollouts of a job."""
    query = page_query(project_id, job_id, filters, request)
    return await fetch_page(connection, query, rollout.c.id, request)


def _equal(pairs: Sequence[tuple[Any, object]]) -> list[ColumnElement[bool]]:
    return [column == value for column, value in pairs if value is not None]


def _range(column: Any, filters: Filters) -> list[ColumnElement[bool]]:
    bounds = []
    if filters.reward_min is not None:
        bounds.append(column >= filters.reward_min)
    if filters.reward_max is not None:
        bounds.append(column <= filters.reward_max)
    return bounds


def _disposed(table: Table, disposition: str) -> ColumnElement[bool]:
    """By the whole disposition, or by its kind."""
    return table.c["disposition" if "(" in disposition else "fate"] == disposition


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
    tries = await _of_rollout(connection, t.rollout_try, "try", found.id)
    hops = await _of_rollout(connection, t.rollout_hop, "hop", found.id)
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
    return History(tries, hops, its_group, (await connection.execute(query)).first())


async def sandboxes(connection: AsyncConnection, rollout_id: str) -> Sequence[Row[Any]]:
    """Intervals of the sandboxes of a rollout that `find` gave, its tries' and its graders'."""
    return await _of_rollout(connection, t.sandbox_interval, "started_at", rollout_id)


async def _of_rollout(
    connection: AsyncConnection, table: Table, order: str, rollout_id: str
) -> Sequence[Row[Any]]:
    query = select(table).where(table.c.rollout_id == rollout_id).order_by(table.c[order])
    return (await connection.execute(query)).all()
