"""Effects of the coordinator's commands, each idempotent, all inside a transaction of the leader."""

from dataclasses import dataclass

from sqlalchemy import case, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import commands as c
from domain.events import RolloutClosed
from domain.ids import GroupId, JobId, group_of, ordinal_of, rollout_id
from domain.states import End, JobState, dropped
from stores import tables as t
from stores.system import hops

group, rollout = t.rollout_group, t.rollout


@dataclass(frozen=True, slots=True)
class GroupOrigin:
    """What a group's row needs beyond its command."""

    job_id: JobId
    organization_id: str
    task_id: str
    environment_version_id: str
    environment: int = 0
    """Place of its environment among those of its purpose, in the spec's order."""


async def open_group(
    connection: AsyncConnection, command: c.OpenGroup, origin: GroupOrigin
) -> None:
    """Insert the group and its rollouts; a second execution changes nothing."""
    inserted = await connection.execute(
        insert(group)
        .values(
            id=command.group_id,
            job_id=origin.job_id,
            attempt_id=command.attempt_id,
            organization_id=origin.organization_id,
            ordinal=ordinal_of(command.group_id),
            purpose=command.purpose.value,
            task_id=origin.task_id,
            environment_version_id=origin.environment_version_id,
            environment=origin.environment,
            policy_version=command.policy_version,
            size=command.size,
            open=command.size,
        )
        .on_conflict_do_nothing()
    )
    if inserted.rowcount == 0:
        return
    members = [
        {
            "id": rollout_id(command.group_id, index),
            "group_id": command.group_id,
            "job_id": origin.job_id,
            "attempt_id": command.attempt_id,
            "organization_id": origin.organization_id,
            "index": index,
            "purpose": command.purpose.value,
            "task_id": origin.task_id,
        }
        for index in range(command.size)
    ]
    await connection.execute(insert(rollout).on_conflict_do_nothing(), members)


async def raise_hop(connection: AsyncConnection, command: c.PlaceRollout) -> bool:
    """Persist a placement; False when the rollout closed or moved on meanwhile."""
    result = await connection.execute(
        update(rollout)
        .where(
            rollout.c.id == command.rollout_id,
            rollout.c["try"] == command.try_,
            rollout.c.closed_at.is_(None),
            rollout.c.hop < command.hop,
        )
        .values(hop=command.hop, host_id=command.host_id)
    )
    if result.rowcount != 1:
        return False
    await hops.append(connection, command)
    return True


async def end_try(connection: AsyncConnection, command: c.EndTry) -> None:
    """Record a try's end once and move the rollout to its next try."""
    await _record_try(connection, command, command.counts)
    if command.next_try is None:
        return
    await connection.execute(
        update(rollout)
        .where(
            rollout.c.id == command.rollout_id,
            rollout.c["try"] == command.try_,
            rollout.c.closed_at.is_(None),
        )
        .values({"try": command.next_try, "host_id": None})
    )


async def close_rollout(
    connection: AsyncConnection, command: c.CloseRollout
) -> RolloutClosed | None:
    """The coordinator's own close; None when the host's close came first.

    The group's row is locked first, as in every writer that touches both: no deadlock.
    """
    group_id = group_of(command.rollout_id)
    await connection.execute(select(group.c.id).where(group.c.id == group_id).with_for_update())
    closed = await connection.execute(
        update(rollout)
        .where(
            rollout.c.id == command.rollout_id,
            rollout.c.closed_at.is_(None),
            rollout.c["try"] == command.try_,
        )
        .values(closed_at=func.now(), end=command.end.value, cause=command.cause)
    )
    if closed.rowcount == 0:
        return None
    await _record_try(connection, command, counts=command.end is not End.CANCELLED)
    await lower_open(connection, group_id)
    return RolloutClosed(
        rollout_id=command.rollout_id,
        try_=command.try_,
        hop=command.hop,
        end=command.end,
        oldest_version=None,
        newest_version=None,
        tokens=0,
        sampled_tokens=0,
        turns=0,
    )


async def _record_try(
    connection: AsyncConnection, command: c.EndTry | c.CloseRollout, counts: bool
) -> None:
    await connection.execute(
        insert(t.rollout_try)
        .values(
            {
                "rollout_id": command.rollout_id,
                "try": command.try_,
                "hop": command.hop,
                "end": command.end.value,
                "cause": command.cause,
                "counts": counts,
            }
        )
        .on_conflict_do_nothing()
    )


async def lower_open(connection: AsyncConnection, group_id: GroupId) -> None:
    """Count one member of the group as closed, under the row's lock."""
    await connection.execute(
        update(group)
        .where(group.c.id == group_id, group.c.open > 0)
        .values(
            open=group.c.open - 1,
            closed_at=case((group.c.open == 1, func.now()), else_=group.c.closed_at),
        )
    )


async def raise_grade_epoch(connection: AsyncConnection, command: c.GradeGroup) -> bool:
    """Fence older graders out; False when the group is graded already."""
    result = await connection.execute(
        update(group)
        .where(
            group.c.id == command.group_id,
            group.c.graded_at.is_(None),
            group.c.grade_epoch < command.grade_epoch,
        )
        .values(grade_epoch=command.grade_epoch)
    )
    return result.rowcount == 1


async def drop_group(connection: AsyncConnection, command: c.DropGroup) -> None:
    """One compare-and-set on the group; members that are pending get the same disposition.

    A member without a verdict becomes unscorable with the drop's reason: never a zero.
    """
    won = await connection.execute(
        update(group)
        .where(group.c.id == command.group_id, group.c.disposition == "pending")
        .values(
            disposition=dropped(command.reason),
            cause=command.cause,
            closed_at=func.coalesce(group.c.closed_at, func.now()),
        )
    )
    if won.rowcount == 0:
        return
    await connection.execute(
        update(rollout)
        .where(rollout.c.group_id == command.group_id, rollout.c.disposition == "pending")
        .values(
            disposition=dropped(command.reason),
            verdict=func.coalesce(rollout.c.verdict, "unscorable"),
            unscorable_reason=case(
                (
                    rollout.c.verdict.is_(None),
                    func.coalesce(rollout.c.end, command.reason.value),
                ),
                else_=rollout.c.unscorable_reason,
            ),
        )
    )


async def assign_group(connection: AsyncConnection, job_id: JobId, command: c.AssignGroup) -> None:
    """Insert the batch membership; a repeated execution changes nothing."""
    await connection.execute(
        insert(t.batch_member)
        .values(
            job_id=job_id,
            attempt_id=command.attempt_id,
            step=command.step,
            position=command.position,
            group_id=command.group_id,
            staleness=command.staleness,
        )
        .on_conflict_do_nothing()
    )


async def replace_member(connection: AsyncConnection, command: c.ReplaceMember) -> bool:
    """Free a position before its step row exists; False when the step is committed already.

    The member is locked by a statement of its own: the delete then sees a step row that was
    committed while the lock was waited for.
    """
    await connection.execute(
        select(t.batch_member.c.position)
        .where(
            t.batch_member.c.attempt_id == command.attempt_id,
            t.batch_member.c.step == command.step,
            t.batch_member.c.position == command.position,
        )
        .with_for_update()
    )
    done = exists().where(
        t.train_step.c.attempt_id == command.attempt_id, t.train_step.c.step == command.step
    )
    result = await connection.execute(
        delete(t.batch_member).where(
            t.batch_member.c.attempt_id == command.attempt_id,
            t.batch_member.c.step == command.step,
            t.batch_member.c.position == command.position,
            t.batch_member.c.group_id == command.group_id,
            ~done,
        )
    )
    if result.rowcount == 1:
        await drop_group(connection, c.DropGroup(command.group_id, command.reason))
    return result.rowcount == 1


async def set_job_state(connection: AsyncConnection, command: c.SetJobState) -> str | None:
    """Write state, reason, position and failure; returns the former state."""
    row = (
        await connection.execute(
            select(t.job.c.state).where(t.job.c.id == command.job_id).with_for_update()
        )
    ).first()
    if row is None:
        return None
    failure = None
    if command.failure_code is not None:
        failure = {
            "code": command.failure_code,
            "component": command.failure_component,
            "retryable": command.retryable,
            "hint": command.failure_hint,
        }
    is_terminal = command.state in ("succeeded", "failed", "cancelled")
    is_started = command.state in ("running", "provisioning")
    await connection.execute(
        update(t.job)
        .where(t.job.c.id == command.job_id)
        .values(
            state=command.state.value,
            # A wish that came while the job ended is moot: nobody takes the ended attempt up for it.
            observed_generation=t.job.c.generation
            if is_terminal
            else func.greatest(t.job.c.observed_generation, command.observed_generation),
            queue_reason=command.reason,
            queue_position=command.queue_position,
            failure=failure,
            started_at=func.coalesce(t.job.c.started_at, func.now())
            if is_started
            else t.job.c.started_at,
            ended_at=func.now() if is_terminal else None,
        )
    )
    return str(row.state)


async def end_attempt(connection: AsyncConnection, attempt_id: str) -> None:
    """Stamp the attempt's end once."""
    await connection.execute(
        update(t.attempt)
        .where(t.attempt.c.id == attempt_id, t.attempt.c.ended_at.is_(None))
        .values(ended_at=func.now())
    )


def failed(job_id: JobId, generation: int, code: str, hint: str) -> c.SetJobState:
    """The command that fails a job before the core ever knew it."""
    return c.SetJobState(
        job_id=job_id,
        state=JobState.FAILED,
        observed_generation=generation,
        failure_code=code,
        failure_component="scheduler",
        failure_hint=hint,
    )
