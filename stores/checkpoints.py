"""Checkpoints of a project's jobs, and operations on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    Select,
    and_,
    func,
    insert,
    null,
    select,
    update,
)
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.checkpoint_uses import uses
from stores.paging import PageOfRows, PageRequest, fetch_page

checkpoint, job, evaluation = t.checkpoint, t.job, t.evaluation


def best_of(job_id: ColumnElement[str]) -> ScalarSelect[str]:
    """Id of a job's best ready checkpoint: the highest selected number, of equal ones the latest step.

    Only checkpoints of evaluated steps count; retention keeps by the same order.
    """
    each, its = checkpoint.alias(), evaluation.alias()
    return (
        select(each.c.id)
        .join(its, and_(its.c.attempt_id == each.c.attempt_id, its.c.step == each.c.step))
        .where(each.c.job_id == job_id, each.c.state == "ready", its.c.selected.is_not(None))
        .order_by(its.c.selected.desc(), each.c.step.desc(), each.c.id)
        .limit(1)
        .scalar_subquery()
    )


def _scored() -> Select[Any]:
    """Checkpoints with their project and what their step's evaluation said, None before it ended."""
    is_its = and_(
        evaluation.c.attempt_id == checkpoint.c.attempt_id, evaluation.c.step == checkpoint.c.step
    )
    return (
        select(
            checkpoint,
            evaluation.c.score,
            evaluation.c.selected,
            func.coalesce(checkpoint.c.id == best_of(checkpoint.c.job_id), False).label("is_best"),
        )
        .join(job, job.c.id == checkpoint.c.job_id)
        .outerjoin(evaluation, is_its)
    )


@dataclass(frozen=True, slots=True)
class Filters:
    """What of a list is wanted; None leaves a column open."""

    job_id: str | None = None
    state: str | None = None
    keep: bool | None = None


async def page(
    connection: AsyncConnection, project_id: str, filters: Filters, request: PageRequest
) -> PageOfRows:
    """Checkpoints of a job, or of the whole project; those of a deleted job while they are ready."""
    shown = job.c.deleted_at.is_(None) | (checkpoint.c.state == "ready")
    query = _scored().where(job.c.project_id == project_id, shown)
    if filters.job_id is not None:
        query = query.where(checkpoint.c.job_id == filters.job_id)
    if filters.state is not None:
        query = query.where(checkpoint.c.state == filters.state)
    if filters.keep is not None:
        query = query.where(checkpoint.c.keep.is_(filters.keep))
    return await fetch_page(connection, query, checkpoint.c.id, request)


async def use_of(connection: AsyncConnection, checkpoint_id: str) -> str | None:
    """Why a checkpoint, which the caller has locked, cannot go; None when it can."""
    named = uses()
    columns = [use.label(f"use{number}") for number, use in enumerate(named.values())]
    row = (await connection.execute(select(*columns).where(checkpoint.c.id == checkpoint_id))).one()
    return next((why for why, is_so in zip(named, row, strict=True) if is_so), None)


async def expire(connection: AsyncConnection, checkpoint_id: str) -> None:
    """Nobody may start from it any more; a chore deletes its files."""
    await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id == checkpoint_id, checkpoint.c.state != "expired")
        .values(state="expired", keep=False, cleaned_at=None)
    )


async def change(
    connection: AsyncConnection, checkpoint_id: str, *, keep: bool, ttl_days: int | None
) -> None:
    """Keep a checkpoint from retention or not; let it expire so many days after its creation."""
    expires_at: Any = null()
    if ttl_days is not None:
        expires_at = checkpoint.c.created_at + func.make_interval(0, 0, 0, ttl_days)
    await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id == checkpoint_id)
        .values(keep=keep, ttl_days=ttl_days, expires_at=expires_at)
    )


async def expire_unneeded(connection: AsyncConnection, job_id: str) -> None:
    """Expire what nothing needs of a job that goes away: neither kept nor used by others."""
    owned = checkpoint.c.job_id == job_id
    await connection.execute(
        select(checkpoint.c.id).where(owned).order_by(checkpoint.c.id).with_for_update()
    )
    await connection.execute(
        update(checkpoint)
        .where(
            owned,
            checkpoint.c.state != "expired",
            ~checkpoint.c.keep,
            *(~use for use in uses().values()),
        )
        .values(state="expired")
    )


async def find(
    connection: AsyncConnection, project_id: str, checkpoint_id: str, lock: bool = False
) -> Row[Any] | None:
    """A checkpoint of the project; locked by who starts from it, so that it does not expire first."""
    query = _scored().where(job.c.project_id == project_id, checkpoint.c.id == checkpoint_id)
    if lock:
        query = query.with_for_update(of=checkpoint)
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def newest(connection: AsyncConnection, project_id: str, job_id: str) -> Row[Any] | None:
    """The newest ready checkpoint of a job."""
    query = (
        select(checkpoint)
        .join(job, job.c.id == checkpoint.c.job_id)
        .where(
            job.c.project_id == project_id,
            checkpoint.c.job_id == job_id,
            checkpoint.c.state == "ready",
        )
        .order_by(checkpoint.c.id.desc())
        .limit(1)
    )
    return (await connection.execute(query)).first()


async def start_operation(
    connection: AsyncConnection, project_id: str, id: str, kind: str, request: Mapping[str, Any]
) -> Row[Any]:
    """Insert an operation in state `pending`; a chore takes it up."""
    query = (
        insert(t.operation)
        .values(id=id, project_id=project_id, kind=kind, request=dict(request), state="pending")
        .returning(t.operation)
    )
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def find_operation(connection: AsyncConnection, project_id: str, id: str) -> Row[Any] | None:
    """An operation of the project."""
    query = select(t.operation).where(
        t.operation.c.project_id == project_id, t.operation.c.id == id
    )
    return (await connection.execute(query)).first()
