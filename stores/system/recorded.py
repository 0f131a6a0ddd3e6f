"""What is kept of a job's last attempt, for plans: placements, turns' objects, steps, measures.

Nothing is written for plans alone: these are the rows of protocol, bill and metrics. The tenant's
project is part of every query, as a plan may only learn from its own project's jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import ProjectId
from domain.states import HostKind, Purpose
from stores import tables as t
from stores.bill import STEP_S, SYNC_S, UPDATE_S

job, attempt, group, rollout = t.job, t.attempt, t.rollout_group, t.rollout
hop, step, member, metric = t.rollout_hop, t.train_step, t.batch_member, t.metric

ROLLOUTS_MAX: Final = 2_048
"""Newest rollouts that a plan learns from: each costs an object to read, and older ones came from
another policy."""


@dataclass(frozen=True, slots=True)
class RecordedOf:
    """A job and its last attempt."""

    job_id: str
    attempt_id: str
    state: str
    spec: Mapping[str, Any]
    base_step: int
    tasks: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeptRollout:
    """A closed rollout of a graded training group. Times are seconds since 1970."""

    group_id: str
    ordinal: int
    opened_s: float
    group_closed_s: float
    graded_s: float
    host_id: str
    placed_s: float
    ended_s: float
    reward: float | None
    trajectory_uri: str
    trajectory_sha: str


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A committed step with its measures."""

    step: int
    committed_s: float
    busy_s: float
    update_s: float | None
    trained_tokens: int
    staleness: tuple[int, ...]
    assigned_s: tuple[float, ...]
    """When its positions were given away, in order."""


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What one engine holds."""

    slots: int
    kv_pages: int


async def find(
    connection: AsyncConnection, project_id: ProjectId, job_id: str
) -> RecordedOf | None:
    """The job, of this project and not deleted."""
    query = (
        select(job, attempt.c.base_step)
        .join(attempt, attempt.c.id == job.c.attempt_id)
        .where(job.c.id == job_id, job.c.project_id == project_id, job.c.deleted_at.is_(None))
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    return RecordedOf(row.id, row.attempt_id, row.state, row.spec, row.base_step, row.tasks)


async def newest_of_environment(
    connection: AsyncConnection, project_id: ProjectId, name: str
) -> str | None:
    """The project's newest job that trained on an environment of this name and committed a step."""
    uses = job.c.spec["environments"][0]["ref"].astext
    has_step = select(step.c.step).where(step.c.attempt_id == job.c.attempt_id, step.c.step > 0)
    query = (
        select(job.c.id)
        .where(
            job.c.project_id == project_id,
            job.c.deleted_at.is_(None),
            func.split_part(uses, "@", 1) == name,
            has_step.exists(),
        )
        .order_by(job.c.id.desc())
        .limit(1)
    )
    found: str | None = (await connection.execute(query)).scalar()
    return found


async def rollouts(connection: AsyncConnection, attempt_id: str) -> Sequence[KeptRollout]:
    """The newest closed rollouts of graded training groups, by group and index; whole groups only."""
    placed = and_(hop.c.rollout_id == rollout.c.id, hop.c.hop == rollout.c.hop)
    query = (
        select(
            rollout.c.group_id,
            group.c.ordinal,
            _epoch(group.c.created_at).label("opened_s"),
            _epoch(group.c.closed_at).label("group_closed_s"),
            _epoch(group.c.graded_at).label("graded_s"),
            hop.c.host_id,
            _epoch(hop.c.placed_at).label("placed_s"),
            _epoch(func.coalesce(hop.c.ended_at, rollout.c.closed_at)).label("ended_s"),
            rollout.c.reward,
            rollout.c.trajectory_uri,
            rollout.c.trajectory_sha,
        )
        .join(group, group.c.id == rollout.c.group_id)
        .join(hop, placed)
        .where(
            rollout.c.attempt_id == attempt_id,
            group.c.purpose == Purpose.TRAIN.value,
            group.c.graded_at.is_not(None),
            rollout.c.trajectory_uri.is_not(None),
        )
        .order_by(group.c.ordinal.desc(), rollout.c.index)
        .limit(ROLLOUTS_MAX)
    )
    found = [_rollout(row) for row in await connection.execute(query)]
    if len(found) == ROLLOUTS_MAX:
        # The oldest group may be cut.
        found = [one for one in found if one.ordinal != found[-1].ordinal]
    return sorted(found, key=lambda one: one.ordinal)


async def steps(connection: AsyncConnection, attempt_id: str) -> Sequence[KeptStep]:
    """Committed steps in order, without the starting policy."""
    rows = await connection.execute(
        select(step.c.step, _epoch(step.c.created_at).label("committed_s"))
        .where(step.c.attempt_id == attempt_id)
        .order_by(step.c.step)
    )
    measures = await _measures(connection, attempt_id)
    tokens = await _trained_tokens(connection, attempt_id)
    staleness = await _staleness(connection, attempt_id)
    assigned = await _assigned(connection, attempt_id)
    return [
        KeptStep(
            step=row.step,
            committed_s=float(row.committed_s),
            busy_s=measures[row.step, STEP_S],
            update_s=measures.get((row.step, UPDATE_S)),
            trained_tokens=tokens.get(row.step, 0),
            staleness=staleness.get(row.step, ()),
            assigned_s=tuple(assigned.get(row.step, ())),
        )
        for row in rows
        if (row.step, STEP_S) in measures
    ]


async def syncs_s(connection: AsyncConnection, attempt_id: str) -> Sequence[float]:
    """Seconds of each weight sync that was measured."""
    rows = await connection.execute(
        select(metric.c.value)
        .where(metric.c.attempt_id == attempt_id, metric.c.name == SYNC_S)
        .order_by(metric.c.step)
    )
    return [float(row.value) for row in rows]


async def engines(connection: AsyncConnection, attempt_id: str) -> int:
    """Engine hosts of the attempt that were ever ready."""
    interval = t.host_interval
    found = await connection.execute(
        select(func.count(interval.c.host_id.distinct())).where(
            interval.c.attempt_id == attempt_id,
            interval.c.kind == HostKind.ENGINE.value,
            interval.c.ready_at.is_not(None),
        )
    )
    return int(found.scalar_one())


async def engine_sizes(connection: AsyncConnection, attempt_id: str) -> EngineSizes | None:
    """What the attempt's engines said of themselves last; None when none ever did."""
    found = await connection.execute(
        select(t.job_schedule.c.profile["engines"]).where(t.job_schedule.c.attempt_id == attempt_id)
    )
    told = [
        EngineSizes(int(one["slots"]), int(one["kv_pages"]))
        for one in found.scalar() or ()
        if one.get("slots") and one.get("kv_pages")
    ]
    # Engines of a job are alike; one that was just replaced has not said anything yet.
    return max(told, key=lambda one: (one.kv_pages, one.slots), default=None)


def _epoch(column: Any) -> Any:
    return func.extract("epoch", column)


def _rollout(row: Any) -> KeptRollout:
    return KeptRollout(
        group_id=row.group_id,
        ordinal=row.ordinal,
        opened_s=float(row.opened_s),
        group_closed_s=float(row.group_closed_s),
        graded_s=float(row.graded_s),
        host_id=row.host_id,
        placed_s=float(row.placed_s),
        ended_s=float(row.ended_s),
        reward=row.reward,
        trajectory_uri=row.trajectory_uri,
        trajectory_sha=row.trajectory_sha,
    )


async def _measures(
    connection: AsyncConnection, attempt_id: str
) -> Mapping[tuple[int, str], float]:
    rows = await connection.execute(
        select(metric.c.step, metric.c.name, metric.c.value).where(
            metric.c.attempt_id == attempt_id, metric.c.name.in_((STEP_S, UPDATE_S))
        )
    )
    return {(row.step, row.name): float(row.value) for row in rows}


async def _trained_tokens(connection: AsyncConnection, attempt_id: str) -> Mapping[int, int]:
    rows = await connection.execute(
        select(member.c.step, func.sum(rollout.c.tokens).label("tokens"))
        .join(rollout, rollout.c.group_id == member.c.group_id)
        .where(member.c.attempt_id == attempt_id)
        .group_by(member.c.step)
    )
    return {row.step: int(row.tokens) for row in rows}


async def _staleness(connection: AsyncConnection, attempt_id: str) -> Mapping[int, tuple[int, ...]]:
    rows = await connection.execute(
        select(member.c.step, member.c.staleness)
        .where(member.c.attempt_id == attempt_id)
        .order_by(member.c.step, member.c.position)
    )
    found: dict[int, tuple[int, ...]] = {}
    for row in rows:
        found[row.step] = (*found.get(row.step, ()), row.staleness)
    return found


async def _assigned(connection: AsyncConnection, attempt_id: str) -> Mapping[int, Sequence[float]]:
    rows = await connection.execute(
        select(member.c.step, _epoch(member.c.created_at).label("assigned_s"))
        .where(member.c.attempt_id == attempt_id)
        .order_by(member.c.created_at)
    )
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row.step, []).append(float(row.assigned_s))
    return found
