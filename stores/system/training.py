"""What a trainer reads and writes: its attempt, batch members, step rows with metrics and fates.

A step row is written once, by unique (attempt, step), in the transaction that also writes the
step's metrics and the dispositions of its groups and rollouts. Repeating the same commit is
harmless, so that a connection lost at the commit is simply tried again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Row, case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import Conflict, NotFound
from domain.ids import AttemptId, CheckpointId, GroupId, JobId, OrganizationId, RolloutId
from domain.policy import PolicyRef
from domain.states import PENDING, DropReason, dropped, trained
from stores import events
from stores import tables as t

group, rollout, step_table = t.rollout_group, t.rollout, t.train_step


EVENT_METRICS: Final = ("reward_mean", "reward_std", "tokens", "groups", "staleness_max")
"""Metrics that also stand in the step's event, for those who follow the stream."""


class MembersChanged(Conflict):
    """The batch is not the one that was trained: a position was replaced meanwhile."""

    code = "members_changed"


@dataclass(frozen=True, slots=True)
class AttemptOrigin:
    """What an attempt trains and where it starts."""

    job_id: JobId
    attempt_id: AttemptId
    organization_id: OrganizationId
    spec: Mapping[str, object]
    from_checkpoint_id: CheckpointId | None
    base_step: int


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """A graded group's payload in the object store."""

    group_id: GroupId
    uri: str
    sha: str


@dataclass(frozen=True, slots=True)
class Member:
    """One filled position of a batch."""

    position: int
    staleness: int
    payload: PayloadRef


@dataclass(frozen=True, slots=True)
class StepRow:
    """A committed step. `payloads` stand in the order in which backward ran."""

    job_id: JobId
    attempt_id: AttemptId
    step: int
    epoch: int
    payloads: tuple[PayloadRef, ...]
    learning_rate: float
    weights_sha: str
    weights_uri: str
    probe_uri: str
    diverged: bool = False

    @property
    def policy(self) -> PolicyRef:
        """The policy version that the step published."""
        return PolicyRef(
            attempt_id=self.attempt_id,
            version=self.step,
            weights_sha=self.weights_sha,
            uri=self.weights_uri,
            probe_uri=self.probe_uri,
            trainer_epoch=self.epoch,
        )


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of a step's groups: `counted` rollouts trained; `excluded` groups diverged."""

    counted: tuple[RolloutId, ...] = ()
    excluded: tuple[GroupId, ...] = ()
    cause: str | None = None
    """Why the step, or a group of it, diverged; names the rollout where one is to blame."""


async def origin(connection: AsyncConnection, attempt_id: AttemptId) -> AttemptOrigin:
    """The attempt with its job's normalised spec. Raises NotFound."""
    query = (
        select(t.attempt, t.job.c.spec, t.job.c.organization_id)
        .join(t.job, t.job.c.id == t.attempt.c.job_id)
        .where(t.attempt.c.id == attempt_id)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"no attempt {attempt_id}")
    return AttemptOrigin(
        job_id=row.job_id,
        attempt_id=row.id,
        organization_id=row.organization_id,
        spec=row.spec,
        from_checkpoint_id=row.from_checkpoint_id,
        base_step=row.base_step,
    )


async def steps_after(
    connection: AsyncConnection, attempt_id: AttemptId, step: int
) -> tuple[StepRow, ...]:
    """Committed steps later than `step`, in order; -1 gives all, the starting policy included."""
    query = (
        select(step_table)
        .where(step_table.c.attempt_id == attempt_id, step_table.c.step > step)
        .order_by(step_table.c.step)
    )
    return tuple(_step_row(row) for row in await connection.execute(query))


def _step_row(row: Row[tuple[object, ...]]) -> StepRow:
    return StepRow(
        job_id=row.job_id,
        attempt_id=row.attempt_id,
        step=row.step,
        epoch=row.epoch,
        payloads=tuple(
            PayloadRef(GroupId(p["group_id"]), p["uri"], p["sha"]) for p in row.payloads
        ),
        learning_rate=row.learning_rate,
        weights_sha=row.weights_sha,
        weights_uri=row.weights_uri,
        probe_uri=row.probe_uri,
        diverged=row.diverged,
    )


async def members(
    connection: AsyncConnection, attempt_id: AttemptId, step: int
) -> tuple[Member, ...]:
    """Filled positions of a step in order of assignment, with their payloads."""
    member = t.batch_member
    query = (
        select(member, group.c.payload_uri, group.c.payload_sha)
        .join(group, group.c.id == member.c.group_id)
        .where(member.c.attempt_id == attempt_id, member.c.step == step)
        .order_by(member.c.created_at, member.c.position)
    )
    return tuple(
        Member(
            position=row.position,
            staleness=row.staleness,
            payload=PayloadRef(GroupId(row.group_id), row.payload_uri or "", row.payload_sha or ""),
        )
        for row in await connection.execute(query)
    )


async def commit_start(connection: AsyncConnection, row: StepRow) -> None:
    """Write the attempt's starting policy once; an earlier trainer's row stands."""
    await connection.execute(insert(step_table).values(_values(row)).on_conflict_do_nothing())


async def commit_step(
    connection: AsyncConnection, row: StepRow, metrics: Mapping[str, float], fates: Fates
) -> None:
    """Write the step, its metrics and its members' fates, all or nothing.

    Raises MembersChanged when the batch holds other groups, Conflict when the step was committed
    with another outcome.
    """
    if await _is_committed(connection, row):
        return
    await _check_members(connection, row, fates)
    await connection.execute(insert(step_table).values(_values(row)))
    await _write_metrics(connection, row, metrics)
    await _write_environments(connection, row, fates)
    await _write_fates(connection, row, fates)
    await _write_event(connection, row, metrics, fates)


def _values(row: StepRow) -> dict[str, object]:
    return {
        "job_id": row.job_id,
        "attempt_id": row.attempt_id,
        "step": row.step,
        "epoch": row.epoch,
        "group_ids": [p.group_id for p in row.payloads],
        "payloads": [{"group_id": p.group_id, "uri": p.uri, "sha": p.sha} for p in row.payloads],
        "learning_rate": row.learning_rate,
        "weights_sha": row.weights_sha,
        "weights_uri": row.weights_uri,
        "probe_uri": row.probe_uri,
        "diverged": row.diverged,
    }


async def _is_committed(connection: AsyncConnection, row: StepRow) -> bool:
    query = select(step_table.c.epoch, step_table.c.weights_sha).where(
        step_table.c.attempt_id == row.attempt_id, step_table.c.step == row.step
    )
    found = (await connection.execute(query)).first()
    if found is None:
        return False
    if (found.epoch, found.weights_sha) != (row.epoch, row.weights_sha):
        raise Conflict(f"step {row.step} was committed by epoch {found.epoch}")
    return True


async def _check_members(connection: AsyncConnection, row: StepRow, fates: Fates) -> None:
    """Lock the members: a replacement waits for this commit and then finds the step's row."""
    member = t.batch_member
    query = (
        select(member.c.group_id)
        .where(member.c.attempt_id == row.attempt_id, member.c.step == row.step)
        .order_by(member.c.position)
        .with_for_update()
    )
    assigned = set((await connection.execute(query)).scalars())
    used = {*(p.group_id for p in row.payloads), *fates.excluded}
    if assigned != used:
        raise MembersChanged(f"step {row.step}: {sorted(assigned ^ used)} differ")


async def _write_metrics(
    connection: AsyncConnection, row: StepRow, metrics: Mapping[str, float]
) -> None:
    points = [
        {"attempt_id": row.attempt_id, "step": row.step, "name": name, "value": value}
        for name, value in sorted(metrics.items())
    ]
    if points:
        await connection.execute(insert(t.metric).on_conflict_do_nothing(), points)


async def _write_environments(connection: AsyncConnection, row: StepRow, fates: Fates) -> None:
    """Mean reward and trained rollouts of each environment, where a job has several."""
    spec = (await connection.execute(select(t.job.c.spec).where(t.job.c.id == row.job_id))).scalar()
    uses = (spec or {}).get("environments") or ()
    if len(uses) < 2:
        return
    query = (
        select(group.c.environment, func.avg(rollout.c.reward), func.count())
        .join(rollout, rollout.c.group_id == group.c.id)
        .where(rollout.c.id.in_(fates.counted), rollout.c.reward.is_not(None))
        .group_by(group.c.environment)
    )
    for number, mean, count in await connection.execute(query):
        name = uses[number].get("name") or uses[number]["ref"].partition("@")[0]
        at = (row.attempt_id, row.step)
        await note_metric(connection, at, f"{name}/reward_mean", float(mean))
        await note_metric(connection, at, f"{name}/rollouts", float(count))


async def note_metric(
    connection: AsyncConnection, at: tuple[AttemptId, int], name: str, value: float
) -> None:
    """One more point of a step; the first one stands."""
    point = {"attempt_id": at[0], "step": at[1], "name": name, "value": value}
    await connection.execute(insert(t.metric).values(point).on_conflict_do_nothing())


async def _write_event(
    connection: AsyncConnection, row: StepRow, metrics: Mapping[str, float], fates: Fates
) -> None:
    shown = {name: metrics[name] for name in EVENT_METRICS if name in metrics}
    body = {"step": row.step, "attempt_id": row.attempt_id, "weights_sha": row.weights_sha, **shown}
    if fates.cause is not None:
        noted = {"step": row.step, "cause": fates.cause, "skipped": row.diverged}
        await events.append(connection, row.job_id, "step.diverged", noted)
    await events.append(connection, row.job_id, "step.committed", body)


async def _write_fates(connection: AsyncConnection, row: StepRow, fates: Fates) -> None:
    used = [p.group_id for p in row.payloads]
    lost = dropped(DropReason.DIVERGED)
    if row.diverged:
        await _dispose_groups(connection, [*used, *fates.excluded], lost)
        await _dispose_rest(connection, [*used, *fates.excluded], lost)
        return
    await _dispose_groups(connection, used, trained(row.step))
    await _dispose_groups(connection, fates.excluded, lost)
    await connection.execute(
        update(rollout)
        .where(rollout.c.id.in_(fates.counted), rollout.c.disposition == PENDING)
        .values(disposition=trained(row.step))
    )
    await _dispose_rest(connection, used, dropped(DropReason.SHRUNK))
    await _dispose_rest(connection, fates.excluded, lost)


async def _dispose_groups(
    connection: AsyncConnection, groups: Sequence[GroupId], disposition: str
) -> None:
    await connection.execute(
        update(group)
        .where(group.c.id.in_(groups), group.c.disposition == PENDING)
        .values(disposition=disposition)
    )


async def _dispose_rest(
    connection: AsyncConnection, groups: Sequence[GroupId], disposition: str
) -> None:
    """Members that did not count: unscorable ones say so, the others get `disposition`."""
    await connection.execute(
        update(rollout)
        .where(rollout.c.group_id.in_(groups), rollout.c.disposition == PENDING)
        .values(
            disposition=case(
                (rollout.c.verdict == "unscorable", dropped(DropReason.UNSCORABLE)),
                else_=disposition,
            )
        )
    )
