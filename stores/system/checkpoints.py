"""Checkpoint rows of trainers, and what retention may delete.

A row is `writing` while its files are written, `ready` once they were read back whole, `expired`
when its files are gone. `manifest_uri` is known from the start, so that a successor can look
whether the last file, the manifest, was reached.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Row, Select, cast, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, CheckpointId, JobId, OrganizationId
from domain.states import Purpose
from stores import events
from stores import tables as t
from stores.checkpoint_uses import uses_by_others

checkpoint, step_table = t.checkpoint, t.train_step


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint."""

    name: str
    uri: str
    sha: str
    size: int


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint with the data position that belongs to its step."""

    checkpoint_id: CheckpointId
    job_id: JobId
    attempt_id: AttemptId
    organization_id: OrganizationId
    step: int
    state: str
    reason: str
    manifest_uri: str
    weights_sha: str
    next_ordinal: int
    unconsumed: tuple[int, ...]


async def begin_writing(connection: AsyncConnection, row: CheckpointRow) -> None:
    """Announce a checkpoint before its first file exists."""
    await connection.execute(
        insert(checkpoint)
        .values(
            id=row.checkpoint_id,
            job_id=row.job_id,
            attempt_id=row.attempt_id,
            organization_id=row.organization_id,
            step=row.step,
            state="writing",
            reason=row.reason,
            manifest_uri=row.manifest_uri,
            weights_sha=row.weights_sha,
            next_ordinal=row.next_ordinal,
            unconsumed=list(row.unconsumed),
        )
        .on_conflict_do_nothing()
    )


async def mark_ready(
    connection: AsyncConnection, row: CheckpointRow, files: Sequence[CheckpointFile]
) -> None:
    """All files were read back and match the manifest. Said once, also when repeated."""
    listed = [{"name": f.name, "uri": f.uri, "sha": f.sha, "size": f.size} for f in files]
    marked = await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id == row.checkpoint_id, checkpoint.c.state == "writing")
        .values(state="ready", files=listed, **_lifetime(row))
    )
    if marked.rowcount == 1:
        body = {"checkpoint_id": row.checkpoint_id, "step": row.step, "reason": row.reason}
        await events.append(connection, row.job_id, "checkpoint.ready", body)


def _lifetime(row: CheckpointRow) -> dict[str, object]:
    """When it expires, as the job's spec says; null without a word of it."""
    spec = t.job.c.spec["checkpoints"]["ttl_days"].astext
    days = select(cast(spec, Integer)).where(t.job.c.id == row.job_id).scalar_subquery()
    expires_at = checkpoint.c.created_at + func.make_interval(0, 0, 0, days)
    return {"ttl_days": days, "expires_at": expires_at}


async def note_skipped(connection: AsyncConnection, row: CheckpointRow, cause: str) -> None:
    """Recovery passed over this checkpoint; its user is told. A half-written one expires."""
    if row.state == "writing":
        await mark_expired(connection, row.checkpoint_id)
    body = {"checkpoint_id": row.checkpoint_id, "step": row.step, "cause": cause}
    await events.append(connection, row.job_id, "checkpoint.skipped", body)


async def mark_expired(connection: AsyncConnection, checkpoint_id: CheckpointId) -> None:
    """The files are about to be deleted; written first, so that nobody starts from half of them."""
    await connection.execute(
        update(checkpoint).where(checkpoint.c.id == checkpoint_id).values(state="expired")
    )


async def mark_cleaned(connection: AsyncConnection, checkpoint_id: CheckpointId) -> None:
    """The files of an expired checkpoint are gone."""
    await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id == checkpoint_id, checkpoint.c.state == "expired")
        .values(cleaned_at=func.now())
    )


async def of_attempt(
    connection: AsyncConnection, attempt_id: AttemptId
) -> tuple[CheckpointRow, ...]:
    """Checkpoints of an attempt that are not expired, the newest first."""
    query = (
        select(checkpoint)
        .where(checkpoint.c.attempt_id == attempt_id, checkpoint.c.state != "expired")
        .order_by(checkpoint.c.step.desc(), checkpoint.c.id.desc())
    )
    return tuple(_row(row) for row in await connection.execute(query))


async def named(
    connection: AsyncConnection, organization_id: OrganizationId, checkpoint_id: CheckpointId
) -> CheckpointRow | None:
    """A checkpoint that another one's user may start from: same organization, ready."""
    query = select(checkpoint).where(
        checkpoint.c.id == checkpoint_id,
        checkpoint.c.organization_id == organization_id,
        checkpoint.c.state == "ready",
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _row(row)


def _row(row: Row[tuple[object, ...]]) -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=row.id,
        job_id=row.job_id,
        attempt_id=row.attempt_id,
        organization_id=row.organization_id,
        step=row.step,
        state=row.state,
        reason=row.reason,
        manifest_uri=row.manifest_uri or "",
        weights_sha=row.weights_sha,
        next_ordinal=row.next_ordinal,
        unconsumed=tuple(row.unconsumed),
    )


async def starting_points(connection: AsyncConnection, job_id: JobId) -> set[CheckpointId]:
    """This job's checkpoints that others still need, or that their user keeps.

    Attempts that have not ended start from some, also a branch's. They are locked first: a restart
    or a branch that chose one meanwhile has committed and is seen, or waits and finds what became of it.
    """
    owned = checkpoint.c.job_id == job_id
    locked = select(checkpoint.c.id).where(owned).order_by(checkpoint.c.id).with_for_update()
    await connection.execute(locked)
    is_needed = or_(checkpoint.c.keep, *uses_by_others().values())
    query = select(checkpoint.c.id).where(owned, is_needed)
    return {CheckpointId(name) for name in (await connection.execute(query)).scalars()}


async def evaluation_scores(
    connection: AsyncConnection, attempt_id: AttemptId
) -> dict[int, float | None]:
    """What checkpoints are compared by, by evaluated step; None while an evaluation runs; steps whose
    evaluation gave no such number are left out."""
    group, done = t.rollout_group, t.evaluation
    begun = (
        select(group.c.policy_version.label("step"))
        .where(group.c.attempt_id == attempt_id, group.c.purpose == Purpose.EVALUATION.value)
        .distinct()
        .subquery()
    )
    is_of_step = (done.c.attempt_id == attempt_id) & (done.c.step == begun.c.step)
    query = (
        select(begun.c.step, done.c.selected)
        .select_from(begun.outerjoin(done, is_of_step))
        .where(done.c.step.is_(None) | done.c.selected.is_not(None))
    )
    return {row.step: row.selected for row in await connection.execute(query)}


async def published_before(
    connection: AsyncConnection, attempt_id: AttemptId, step: int
) -> tuple[tuple[str, str], ...]:
    """(weights, probe) paths of steps before `step` that no later step and no evaluation needs.

    Evaluations are made in the order of their steps: those that wait are later than the one that runs.
    """
    kept = select(step_table.c.weights_uri).where(
        step_table.c.attempt_id == attempt_id, step_table.c.step >= step
    )
    group, done = t.rollout_group, t.evaluation
    is_done = exists().where(
        done.c.attempt_id == group.c.attempt_id, done.c.step == group.c.policy_version
    )
    pinned = (
        select(func.min(group.c.policy_version))
        .where(
            group.c.attempt_id == attempt_id,
            group.c.purpose == Purpose.EVALUATION.value,
            ~is_done,
        )
        .scalar_subquery()
    )
    query = select(step_table.c.weights_uri, step_table.c.probe_uri).where(
        step_table.c.attempt_id == attempt_id,
        step_table.c.step < step,
        step_table.c.weights_uri.not_in(kept),
        step_table.c.step < func.coalesce(pinned, step),
    )
    return tuple((row[0], row[1]) for row in await connection.execute(query))


async def of_project(
    connection: AsyncConnection, project_id: str, checkpoint_id: CheckpointId
) -> CheckpointRow | None:
    """A ready checkpoint of a job of this project."""
    row = (await connection.execute(_ready_of_project(project_id, checkpoint_id))).first()
    return None if row is None else _row(row)


@dataclass(frozen=True, slots=True)
class Exportable:
    """A ready checkpoint's files, and its bundle if it was exported before."""

    job_id: JobId
    files: tuple[CheckpointFile, ...]
    export: Mapping[str, object] | None


async def exportable(
    connection: AsyncConnection, project_id: str, checkpoint_id: CheckpointId
) -> Exportable | None:
    """What an export reads; None when there is no such ready checkpoint."""
    row = (await connection.execute(_ready_of_project(project_id, checkpoint_id))).first()
    if row is None:
        return None
    files = tuple(CheckpointFile(f["name"], f["uri"], f["sha"], f["size"]) for f in row.files)
    return Exportable(row.job_id, files, row.export)


async def mark_exported(
    connection: AsyncConnection, checkpoint_id: CheckpointId, bundle: Mapping[str, object]
) -> bool:
    """Name the bundle; False when the checkpoint expired meanwhile."""
    marked = await connection.execute(
        update(checkpoint)
        .where(checkpoint.c.id == checkpoint_id, checkpoint.c.state == "ready")
        .values(export=dict(bundle))
    )
    return marked.rowcount == 1


def _ready_of_project(project_id: str, checkpoint_id: CheckpointId) -> Select[Any]:
    return (
        select(checkpoint)
        .join(t.job, t.job.c.id == checkpoint.c.job_id)
        .where(
            checkpoint.c.id == checkpoint_id,
            checkpoint.c.state == "ready",
            t.job.c.project_id == project_id,
        )
    )
