"""Jobs of a project: creation, reading, and the verbs that raise the generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, insert, select, tuple_, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import events
from stores import tables as t
from stores.checkpoints import best_of
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page

job, attempt = t.job, t.attempt


@dataclass(frozen=True, slots=True)
class Start:
    """Where an attempt starts: the base model, or a checkpoint with its step and data position."""

    from_checkpoint_id: str | None = None
    base_step: int = 0
    next_ordinal: int = 0
    unconsumed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NewJob:
    """A validated job. `created` is said in its first event."""

    id: str
    attempt_id: str
    name: str
    spec: Mapping[str, Any]
    submitted_spec: Mapping[str, Any]
    labels: Mapping[str, str]
    environment_version_id: str
    start: Start = Start()
    created: Mapping[str, Any] = field(default_factory=dict)


async def create(connection: AsyncConnection, owner: Owner, new: NewJob) -> Row[Any]:
    """Insert job, first attempt and first event."""
    await connection.execute(
        insert(job).values(
            id=new.id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            name=new.name,
            spec=dict(new.spec),
            submitted_spec=dict(new.submitted_spec),
            labels=dict(new.labels),
            environment_version_id=new.environment_version_id,
            attempt_id=new.attempt_id,
            state="validating",
        )
    )
    await _add_attempt(connection, new.id, (new.attempt_id, 1), new.start)
    body = {"name": new.name, "state": "validating", **new.created}
    await events.append(connection, new.id, "job.created", body)
    found = await find(connection, owner.project_id, new.id)
    assert found is not None
    return found


async def _add_attempt(
    connection: AsyncConnection, job_id: str, name: tuple[str, int], start: Start
) -> None:
    id, number = name
    await connection.execute(
        insert(attempt).values(
            id=id,
            job_id=job_id,
            number=number,
            from_checkpoint_id=start.from_checkpoint_id,
            base_step=start.base_step,
            next_ordinal=start.next_ordinal,
            unconsumed=list(start.unconsumed),
        )
    )


def _query() -> Any:
    return select(
        job,
        attempt.c.number.label("attempt_number"),
        best_of(job.c.id).label("best_checkpoint"),
    ).join(attempt, attempt.c.id == job.c.attempt_id)


async def find(
    connection: AsyncConnection, project_id: str, job_id: str, lock: bool = False
) -> Row[Any] | None:
    """A job of the project with its attempt's number; locked when asked.

    The lock is taken first: who waited for it must see the attempt that the holder has made.
    """
    is_it = (job.c.project_id == project_id) & (job.c.id == job_id)
    if lock:
        await connection.execute(select(job.c.id).where(is_it).with_for_update())
    query = _query().where(is_it, job.c.deleted_at.is_(None))
    found: Row[Any] | None = (await connection.execute(query)).first()
    return found


async def steps_made(connection: AsyncConnection, job_id: str) -> int:
    """Steps that the job's newest attempt has committed beyond its start."""
    step = t.train_step
    beyond = step.c.step > attempt.c.base_step
    query = (
        select(func.count(step.c.step))
        .join(attempt, attempt.c.id == step.c.attempt_id)
        .join(job, job.c.attempt_id == attempt.c.id)
        .where(job.c.id == job_id, beyond)
    )
    return int((await connection.execute(query)).scalar_one())


async def page(
    connection: AsyncConnection, project_id: str, request: PageRequest, state: str | None
) -> PageOfRows:
    """Jobs of the project."""
    query = _query().where(job.c.project_id == project_id, job.c.deleted_at.is_(None))
    if state is not None:
        query = query.where(job.c.state == state)
    return await fetch_page(connection, query, job.c.id, request)


async def want(connection: AsyncConnection, project_id: str, job_id: str, desired: str) -> None:
    """Ask for run, pause or cancel; the coordinator answers the raised generation."""
    await connection.execute(
        update(job)
        .where(job.c.id == job_id, job.c.project_id == project_id)
        .values(
            desired=desired,
            generation=job.c.generation + 1,
            desired_generation=job.c.generation + 1,
        )
    )
    await events.append(connection, job_id, "job.desired", {"desired": desired})


async def end_unstarted(connection: AsyncConnection, project_id: str, job_id: str) -> None:
    """Cancel a job that no coordinator has taken up."""
    await connection.execute(
        update(job)
        .where(job.c.id == job_id, job.c.project_id == project_id, job.c.state == "validating")
        .values(state="cancelled", ended_at=func.now(), observed_generation=job.c.generation)
    )
    await connection.execute(
        update(attempt)
        .where(attempt.c.job_id == job_id, attempt.c.ended_at.is_(None))
        .values(ended_at=func.now())
    )
    await events.append(connection, job_id, "job.state", {"state": "cancelled"})


async def restart(
    connection: AsyncConnection, project_id: str, job_id: str, attempt_id: str, start: Start
) -> None:
    """Make a new attempt and ask for it; the former attempt has ended."""
    number = (
        await connection.execute(
            select(func.max(attempt.c.number)).where(attempt.c.job_id == job_id)
        )
    ).scalar_one()
    await _add_attempt(connection, job_id, (attempt_id, number + 1), start)
    await connection.execute(
        update(job)
        .where(job.c.id == job_id, job.c.project_id == project_id)
        .values(
            attempt_id=attempt_id,
            desired="run",
            state="queued",
            generation=job.c.generation + 1,
            desired_generation=job.c.generation + 1,
            failure=None,
            queue_reason=None,
            ended_at=None,
        )
    )
    body = {"attempt": number + 1, "from_checkpoint": start.from_checkpoint_id}
    await events.append(connection, job_id, "job.restarted", body)


async def patch(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    spec: Mapping[str, Any],
    *,
    raises_generation: bool,
) -> None:
    """Replace the spec by a changed one; a raised generation makes the coordinator read it."""
    await connection.execute(
        update(job)
        .where(job.c.id == job_id, job.c.project_id == project_id)
        .values(
            spec=dict(spec),
            name=spec["name"],
            labels=spec["labels"],
            generation=job.c.generation + (1 if raises_generation else 0),
        )
    )


async def is_deleted(connection: AsyncConnection, project_id: str, job_id: str) -> bool:
    """Whether the project had this job and its user deleted it."""
    query = select(job.c.id).where(
        job.c.project_id == project_id, job.c.id == job_id, job.c.deleted_at.is_not(None)
    )
    return (await connection.execute(query)).first() is not None


async def has_ended(connection: AsyncConnection, project_id: str, job_id: str) -> bool:
    """Whether no attempt of the job runs or holds anything any more."""
    open_ = (
        select(attempt.c.id)
        .join(job, job.c.id == attempt.c.job_id)
        .where(job.c.project_id == project_id, job.c.id == job_id, attempt.c.ended_at.is_(None))
    )
    return (await connection.execute(open_)).first() is None


async def delete(connection: AsyncConnection, project_id: str, job_id: str) -> None:
    """Show the job nowhere any more; its rows stay for bills, a chore deletes its objects."""
    await connection.execute(
        update(job)
        .where(job.c.project_id == project_id, job.c.id == job_id)
        .values(deleted_at=func.now())
    )


async def start_of(connection: AsyncConnection, project_id: str, job_id: str) -> str | None:
    """The checkpoint that the job's present attempt starts from."""
    query = (
        select(attempt.c.from_checkpoint_id)
        .join(job, job.c.attempt_id == attempt.c.id)
        .where(job.c.project_id == project_id, job.c.id == job_id)
    )
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def events_after(
    connection: AsyncConnection,
    project_id: str,
    job_id: str,
    after: int,
    *,
    types: Sequence[str] = (),
    limit: int = 200,
) -> Sequence[Row[Any]]:
    """Events of a job above a sequence number."""
    query = (
        select(t.job_event)
        .join(job, job.c.id == t.job_event.c.job_id)
        .where(job.c.project_id == project_id, job.c.id == job_id, t.job_event.c.seq > after)
        .order_by(t.job_event.c.seq)
        .limit(limit)
    )
    if types:
        query = query.where(t.job_event.c.type.in_(types))
    return (await connection.execute(query)).all()


@dataclass(frozen=True, slots=True)
class PointsWanted:
    """Which points of a job's series: by name, above a step, after the last one of a page."""

    names: Sequence[str] = ()
    after_step: int = -1
    after: tuple[int, int, str] | None = None
    """Attempt number, step and name of the last point seen."""
    limit: int = 10_000


async def metrics(
    connection: AsyncConnection, project_id: str, job_id: str, wanted: PointsWanted
) -> Sequence[Row[Any]]:
    """Points of a job's series with their attempt's number, by attempt, step and name."""
    metric = t.metric
    place = (attempt.c.number, metric.c.step, metric.c.name)
    query = (
        select(metric, attempt.c.number.label("attempt_number"))
        .join(attempt, attempt.c.id == metric.c.attempt_id)
        .join(job, job.c.id == attempt.c.job_id)
        .where(
            job.c.project_id == project_id,
            job.c.id == job_id,
            metric.c.step > wanted.after_step,
        )
        .order_by(*place)
        .limit(wanted.limit)
    )
    if wanted.after is not None:
        query = query.where(tuple_(*place) > tuple_(*wanted.after))
    if wanted.names:
        query = query.where(metric.c.name.in_(wanted.names))
    return (await connection.execute(query)).all()


async def evaluations(
    connection: AsyncConnection, project_id: str, job_id: str
) -> Sequence[Row[Any]]:
    """Finished evaluations of all attempts."""
    query = (
        select(t.evaluation)
        .join(attempt, attempt.c.id == t.evaluation.c.attempt_id)
        .join(job, job.c.id == attempt.c.job_id)
        .where(job.c.project_id == project_id, job.c.id == job_id)
        .order_by(attempt.c.number, t.evaluation.c.step)
    )
    return (await connection.execute(query)).all()


async def ledger(connection: AsyncConnection, project_id: str, job_id: str) -> Sequence[Row[Any]]:
    """Rollouts of a job counted by purpose, end, verdict and disposition."""
    group, rollout = t.rollout_group, t.rollout
    keys = (group.c.purpose, rollout.c.end, rollout.c.verdict, rollout.c.disposition)
    query = (
        select(*keys, func.count().label("rollouts"))
        .select_from(rollout)
        .join(group, group.c.id == rollout.c.group_id)
        .join(job, job.c.id == rollout.c.job_id)
        .where(job.c.project_id == project_id, job.c.id == job_id)
        .group_by(*keys)
        .order_by(*keys)
    )
    return (await connection.execute(query)).all()
