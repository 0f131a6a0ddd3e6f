"""What has had its time: checkpoints past their age, objects of what expired or was deleted.

The leader marks and asks for chores; a chore deletes objects and says so. Everything is found by
looking at rows, so that a chore that died is made good by the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import delete as delete_rows
from sqlalchemy import exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.names import CLEAN_JOB
from stores import events
from stores import tables as t
from stores.checkpoint_uses import uses

checkpoint, job, output = t.checkpoint, t.job, t.environment_output

DUE_MAX: Final = 50
"""Checkpoints that expire in one pass: the transaction stays short."""

CLEANINGS_MAX: Final = 20
"""Jobs that one pass asks chores for."""

CLEAN_AGAIN: Final = timedelta(minutes=5)
"""A cleaning that failed is asked for again after it, not in a hot loop."""

OUTPUT_AGE: Final = timedelta(days=30)
"""How long what environments printed stays."""

OUTPUTS_MAX: Final = 10_000
"""Outputs that one chore deletes; the next one goes on."""


async def expire_due(connection: AsyncConnection) -> Sequence[str]:
    """Expire checkpoints past their age that nobody keeps or needs; their ids."""
    is_due = (
        (checkpoint.c.state == "ready")
        & ~checkpoint.c.keep
        & (checkpoint.c.expires_at <= func.now())
    )
    unused = [~use for use in uses().values()]
    # Locked first: who begins to use one meanwhile holds its lock, and is skipped or seen.
    locked = (
        select(checkpoint.c.id)
        .where(is_due, *unused)
        .order_by(checkpoint.c.id)
        .limit(DUE_MAX)
        .with_for_update(skip_locked=True)
    )
    ids = list((await connection.execute(locked)).scalars())
    if not ids:
        return ()
    query = (
        update(checkpoint)
        .where(checkpoint.c.id.in_(ids), is_due, *unused)
        .values(state="expired")
        .returning(checkpoint.c.id, checkpoint.c.job_id, checkpoint.c.step)
    )
    gone = sorted((await connection.execute(query)).all())
    for row in gone:
        body = {"checkpoint_id": row.id, "step": row.step, "cause": "ttl_days"}
        await events.append(connection, row.job_id, "checkpoint.expired", body)
    return [row.id for row in gone]


def _old_outputs() -> Any:
    return output.c.created_at < func.now() - OUTPUT_AGE


async def jobs_to_clean(connection: AsyncConnection) -> Sequence[tuple[str, str]]:
    """(job, project) of what has objects to delete and no chore on it."""
    asked = t.operation
    deleted = job.c.deleted_at.is_not(None) & job.c.cleaned_at.is_(None)
    is_asked = exists().where(
        asked.c.kind == CLEAN_JOB,
        asked.c.request["job_id"].astext == job.c.id,
        or_(asked.c.ended_at.is_(None), asked.c.created_at > func.now() - CLEAN_AGAIN),
    )
    candidates = (
        select(checkpoint.c.job_id)
        .where(checkpoint.c.state == "expired", checkpoint.c.cleaned_at.is_(None))
        .union(
            select(job.c.id).where(deleted),
            select(output.c.job_id).where(_old_outputs()),
        )
    )
    query = (
        select(job.c.id, job.c.project_id)
        .where(job.c.id.in_(candidates), ~is_asked)
        .order_by(job.c.id)
        .limit(CLEANINGS_MAX)
    )
    return [(row.id, row.project_id) for row in await connection.execute(query)]


async def ask_to_clean(
    connection: AsyncConnection, operation_id: str, job_id: str, project_id: str
) -> None:
    """Insert the operation; a chore takes it up."""
    await connection.execute(
        insert(t.operation).values(
            id=operation_id,
            project_id=project_id,
            kind=CLEAN_JOB,
            request={"job_id": job_id},
            state="pending",
        )
    )


@dataclass(frozen=True, slots=True)
class Remains:
    """Objects of a job that nothing names any more for a user."""

    is_deleted: bool
    attempts: Sequence[str]
    checkpoints: Sequence[tuple[str, Sequence[str], str | None]]
    """Expired ones: id, paths of files and bundle, path of the manifest."""
    outputs: Sequence[tuple[str, str]]
    """Old ones, or all of a deleted job: id and path."""


async def remains_of(connection: AsyncConnection, job_id: str) -> Remains:
    """What a chore deletes of a job."""
    deleted_at = (
        await connection.execute(select(job.c.deleted_at).where(job.c.id == job_id))
    ).scalar_one_or_none()
    attempts = select(t.attempt.c.id).where(t.attempt.c.job_id == job_id).order_by(t.attempt.c.id)
    expired = (
        select(checkpoint)
        .where(
            checkpoint.c.job_id == job_id,
            checkpoint.c.state == "expired",
            checkpoint.c.cleaned_at.is_(None),
        )
        .order_by(checkpoint.c.id)
    )
    outputs = select(output.c.id, output.c.uri).where(output.c.job_id == job_id)
    if deleted_at is None:
        outputs = outputs.where(_old_outputs())
    old = await connection.execute(outputs.order_by(output.c.id).limit(OUTPUTS_MAX))
    return Remains(
        is_deleted=deleted_at is not None,
        attempts=list((await connection.execute(attempts)).scalars()),
        checkpoints=[
            (row.id, _paths_of(row), row.manifest_uri) for row in await connection.execute(expired)
        ],
        outputs=[(row.id, row.uri) for row in old],
    )


def _paths_of(row: Any) -> list[str]:
    paths = [str(one["uri"]) for one in row.files]
    return paths if row.export is None else [*paths, str(row.export["uri"])]


async def cleaned(connection: AsyncConnection, job_id: str, gone: Remains) -> None:
    """The objects are deleted; the rows of outputs go too."""
    names = [name for name, _, _ in gone.checkpoints]
    await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id.in_(names), checkpoint.c.state == "expired")
        .values(cleaned_at=func.now())
    )
    ids = [id for id, _ in gone.outputs]
    await connection.execute(delete_rows(output).where(output.c.id.in_(ids)))
    if gone.is_deleted and len(ids) < OUTPUTS_MAX:
        await connection.execute(
            update(job).where(job.c.id == job_id).values(cleaned_at=func.now())
        )
