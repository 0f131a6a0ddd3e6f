"""What the leader reads of jobs: which want attention, and everything that a new leader restores."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Row, RowMapping, Text, cast, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.events import (
    GroupGraded,
    RestoredGroup,
    RestoredHost,
    RestoredRollout,
    RolloutClosed,
    StepCommitted,
)
from domain.ids import (
    AttemptId,
    CheckpointId,
    GroupId,
    HostId,
    JobId,
    OrganizationId,
    ProjectId,
    RolloutId,
)
from domain.policy import PolicyRef
from domain.states import Desired, End, HostKind, JobState, Purpose
from stores import tables as t

group, rollout, step = t.rollout_group, t.rollout, t.train_step

_EVALUATED = exists().where(
    t.evaluation.c.attempt_id == group.c.attempt_id,
    t.evaluation.c.step == group.c.policy_version,
)

IS_OPEN = or_(
    group.c.disposition == "pending",
    (group.c.purpose == Purpose.EVALUATION.value) & ~_EVALUATED,
)
"""Groups that the coordinator still thinks about: pending ones, and those of a running evaluation."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the attempt that its user wants."""

    job_id: JobId
    organization_id: OrganizationId
    project_id: ProjectId
    spec: Mapping[str, object]
    tasks: Mapping[str, Mapping[str, object]]
    """Task lists by name (`domain/task_lists.py`): {name: {uri, sha, count}}."""
    generation: int
    observed_generation: int
    desired_generation: int
    """Generation of the last wish (run, pause, cancel); later ones only changed limits."""
    desired: Desired
    state: JobState
    reason: str | None
    attempt_id: AttemptId
    base_step: int
    next_ordinal: int
    unconsumed: tuple[int, ...]


async def wanting_attention(connection: AsyncConnection) -> list[JobRow]:
    """Jobs whose generation the coordinator has not answered, oldest first."""
    is_prepared = t.job.c.state != JobState.VALIDATING.value
    return await _jobs(connection, (t.job.c.generation > t.job.c.observed_generation) & is_prepared)


async def unfinished(connection: AsyncConnection) -> list[JobRow]:
    """Jobs that a coordinator has taken up and that have not ended, oldest first."""
    return await _jobs(connection, t.job.c.ended_at.is_(None) & (t.job.c.observed_generation > 0))


async def _jobs(connection: AsyncConnection, condition: object) -> list[JobRow]:
    query = (
        select(t.job, t.attempt.c.base_step, t.attempt.c.next_ordinal, t.attempt.c.unconsumed)
        .join(t.attempt, t.attempt.c.id == t.job.c.attempt_id)
        .where(condition)  # type: ignore[arg-type]  # a SQL expression
        .order_by(t.job.c.id)
    )
    return [_job(row._mapping) for row in await connection.execute(query)]


def _job(row: RowMapping) -> JobRow:
    return JobRow(
        job_id=row["id"],
        organization_id=row["organization_id"],
        project_id=row["project_id"],
        spec=row["spec"],
        tasks=row["tasks"],
        generation=row["generation"],
        observed_generation=row["observed_generation"],
        desired_generation=row["desired_generation"],
        desired=Desired(row["desired"]),
        state=JobState(row["state"]),
        reason=row["queue_reason"],
        attempt_id=AttemptId(row["attempt_id"]),
        base_step=row["base_step"],
        next_ordinal=row["next_ordinal"],
        unconsumed=tuple(row["unconsumed"]),
    )


async def policies(connection: AsyncConnection, attempt: AttemptId) -> list[StepCommitted]:
    """All step rows of an attempt in order; step 0 of an attempt is its starting policy."""
    query = select(step).where(step.c.attempt_id == attempt).order_by(step.c.step)
    return [_step(row) for row in await connection.execute(query)]


def _step(row: Row[tuple[object, ...]]) -> StepCommitted:
    policy = PolicyRef(
        attempt_id=row.attempt_id,
        version=row.step,
        weights_sha=row.weights_sha,
        uri=row.weights_uri,
        probe_uri=row.probe_uri,
        trainer_epoch=row.epoch,
    )
    return StepCommitted(row.attempt_id, row.step, policy, row.diverged)


async def checkpoint_steps(
    connection: AsyncConnection, attempt: AttemptId
) -> list[tuple[int, CheckpointId]]:
    """Steps with a checkpoint that was read back whole."""
    query = (
        select(t.checkpoint.c.step, t.checkpoint.c.id)
        .where(t.checkpoint.c.attempt_id == attempt, t.checkpoint.c.state == "ready")
        .order_by(t.checkpoint.c.step)
    )
    return [(row[0], CheckpointId(row[1])) for row in await connection.execute(query)]


async def evaluated_steps(connection: AsyncConnection, attempt: AttemptId) -> tuple[int, ...]:
    """Steps whose evaluation is finished."""
    query = select(t.evaluation.c.step).where(t.evaluation.c.attempt_id == attempt)
    return tuple(sorted((await connection.execute(query)).scalars()))


async def reached_step(
    connection: AsyncConnection, attempt: AttemptId, target: float | None
) -> int | None:
    """The first evaluated step whose selected number is at least the target."""
    if target is None:
        return None
    query = select(func.min(t.evaluation.c.step)).where(
        t.evaluation.c.attempt_id == attempt, t.evaluation.c.selected >= target
    )
    found: int | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def last_ordinal(connection: AsyncConnection, attempt: AttemptId) -> int | None:
    """Largest training ordinal issued in this attempt."""
    query = select(func.max(group.c.ordinal)).where(
        group.c.attempt_id == attempt, group.c.purpose == Purpose.TRAIN.value
    )
    found: int | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def issued_ordinals(connection: AsyncConnection, attempt: AttemptId) -> set[int]:
    """All ordinals that have a group in this attempt, those of evaluations too."""
    query = select(group.c.ordinal).where(group.c.attempt_id == attempt)
    return set((await connection.execute(query)).scalars())


async def pending_groups(
    connection: AsyncConnection, attempt: AttemptId
) -> tuple[RestoredGroup, ...]:
    """Groups whose fate is open, with their rollouts, tries and batch position."""
    member = t.batch_member
    query = (
        select(group, member.c.step.label("step"), member.c.position.label("position"))
        .outerjoin(
            member,
            (member.c.group_id == group.c.id) & (member.c.attempt_id == group.c.attempt_id),
        )
        .where(group.c.attempt_id == attempt, IS_OPEN)
        .order_by(group.c.id)
    )
    rows = list(await connection.execute(query))
    members = await _rollouts(connection, attempt)
    return tuple(_group(row._mapping, members[row.id]) for row in rows)


def _group(row: RowMapping, members: list[RestoredRollout]) -> RestoredGroup:
    return RestoredGroup(
        group_id=GroupId(row["id"]),
        purpose=Purpose(row["purpose"]),
        size=row["size"],
        created_at=row["created_at"].timestamp(),
        policy_version=row["policy_version"],
        grade_epoch=row["grade_epoch"],
        rollouts=tuple(members),
        closed=row["closed_at"] is not None,
        graded=graded_event(row) if row["graded_at"] is not None else None,
        assigned_step=row["step"],
        assigned_position=row["position"],
    )


def graded_event(row: RowMapping) -> GroupGraded:
    """The fact that a graded group's row tells."""
    return GroupGraded(
        group_id=GroupId(row["id"]),
        grade_epoch=row["grade_epoch"],
        usable=row["usable"] or 0,
        zero_variance=bool(row["zero_variance"]),
        oldest_version=row["oldest_version"],
        mean_reward=row["mean_reward"],
        reread=True,
    )


async def _rollouts(
    connection: AsyncConnection, attempt: AttemptId
) -> dict[str, list[RestoredRollout]]:
    failed = (
        select(t.rollout_try.c.rollout_id, func.count().label("failed"))
        .where(t.rollout_try.c.counts)
        .group_by(t.rollout_try.c.rollout_id)
        .subquery()
    )
    query = (
        select(rollout, func.coalesce(failed.c.failed, 0).label("failed"))
        .join(group, group.c.id == rollout.c.group_id)
        .outerjoin(failed, failed.c.rollout_id == rollout.c.id)
        .where(rollout.c.attempt_id == attempt, IS_OPEN)
        .order_by(rollout.c.id)
    )
    found: dict[str, list[RestoredRollout]] = defaultdict(list)
    for row in (await connection.execute(query)).mappings():
        found[row["group_id"]].append(
            RestoredRollout(
                rollout_id=RolloutId(row["id"]),
                try_=row["try"],
                hop=row["hop"],
                failed_tries=row["failed"],
                closed_end=End(row["end"]) if row["closed_at"] is not None else None,
                tokens=row["tokens"],
                sampled_tokens=row["sampled_tokens"],
                turns=row["turns"],
                oldest_version=row["oldest_version"],
                host_id=row["host_id"],
            )
        )
    return found


async def hosts(connection: AsyncConnection) -> tuple[RestoredHost, ...]:
    """Lease rows that are wanted up or still claimed."""
    lease = t.host_lease
    query = (
        select(lease)
        .where(or_(lease.c.desired == "up", lease.c.owner.is_not(None)))
        .order_by(lease.c.id)
    )
    return tuple(
        RestoredHost(
            host_id=HostId(row.id),
            epoch=row.epoch,
            kind=HostKind(row.kind),
            attempt_id=row.attempt_id,
            claimed=row.owner is not None,
            job_id=row.job_id,
        )
        for row in await connection.execute(query)
    )


async def closed_not_graded(
    connection: AsyncConnection, attempts: list[AttemptId]
) -> list[RolloutClosed]:
    """Closed rollouts of groups without verdicts: what a lost notification would have said."""
    query = (
        select(rollout)
        .join(group, group.c.id == rollout.c.group_id)
        .where(
            rollout.c.attempt_id.in_(attempts),
            rollout.c.closed_at.is_not(None),
            group.c.graded_at.is_(None),
            group.c.disposition == "pending",
        )
        .order_by(rollout.c.id)
    )
    return [
        RolloutClosed(
            rollout_id=RolloutId(row["id"]),
            try_=row["try"],
            hop=row["hop"],
            end=End(row["end"]),
            oldest_version=row["oldest_version"],
            newest_version=row["newest_version"],
            tokens=row["tokens"],
            sampled_tokens=row["sampled_tokens"],
            turns=row["turns"],
            reread=True,
        )
        for row in (await connection.execute(query)).mappings()
    ]


async def graded_not_assigned(
    connection: AsyncConnection, attempts: list[AttemptId]
) -> list[GroupGraded]:
    """Graded groups whose fate is open and that no batch holds."""
    member = t.batch_member
    query = (
        select(group)
        .outerjoin(member, member.c.group_id == group.c.id)
        .where(
            group.c.attempt_id.in_(attempts),
            group.c.graded_at.is_not(None),
            IS_OPEN,
            member.c.group_id.is_(None),
        )
        .order_by(group.c.id)
    )
    return [graded_event(row) for row in (await connection.execute(query)).mappings()]


async def newest_step(connection: AsyncConnection, attempt: AttemptId) -> StepCommitted | None:
    """The last committed step of an attempt."""
    query = select(step).where(step.c.attempt_id == attempt).order_by(step.c.step.desc()).limit(1)
    row = (await connection.execute(query)).first()
    return None if row is None else _step(row)


@dataclass(frozen=True, slots=True)
class PackageRef:
    """Where the package of an environment version lies."""

    environment_version_id: str
    uri: str
    sha: str
    has_sandbox: bool = True


async def packages_of(
    connection: AsyncConnection, project_id: str, refs: Sequence[str]
) -> dict[str, PackageRef]:
    """Packages of environment versions of a project, by reference; without those that are gone."""
    versions, environments = t.environment_version, t.environment
    name = environments.c.name + "@" + cast(versions.c.version, Text)
    has_sandbox = versions.c.manifest["sandbox"].as_boolean()
    query = (
        select(name, versions.c.id, versions.c.package_uri, versions.c.package_sha, has_sandbox)
        .join(environments, environments.c.id == versions.c.environment_id)
        .where(environments.c.project_id == project_id, name.in_(refs))
    )
    rows = await connection.execute(query)
    return {ref: PackageRef(id, uri, sha, has is not False) for ref, id, uri, sha, has in rows}


async def write_progress(
    connection: AsyncConnection, job_id: JobId, progress: Mapping[str, object]
) -> None:
    """Replace the job's progress document, the scheduler's view for people."""
    await connection.execute(
        update(t.job).where(t.job.c.id == job_id).values(progress=dict(progress))
    )
