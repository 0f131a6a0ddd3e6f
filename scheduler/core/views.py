"""Frozen snapshots of a job for the API and for people; the core itself never reads them."""

from dataclasses import dataclass

from domain.ids import GroupId, HostId, RolloutId
from domain.states import HostKind, JobState
from scheduler.core import gangs, order
from scheduler.core.forecast import NO_START, Start
from scheduler.core.records import GroupPhase, JobRecord
from scheduler.core.state import State


@dataclass(frozen=True, slots=True)
class HostView:
    """One live host of the attempt. `version` is the policy that an engine serves, else -1."""

    host_id: HostId
    kind: HostKind
    epoch: int
    version: int
    load: int


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """The evaluation that runs now."""

    step: int
    opened: int
    unfinished: int


@dataclass(frozen=True, slots=True)
class JobView:
    """What a job does at this moment."""

    state: JobState
    reason: str | None
    queue_position: int | None
    start: Start
    """When it will get its gang, if it waits for one."""
    committed_step: int
    filling_step: int
    open_groups: tuple[GroupId, ...]
    """Unfinished training groups, in the job's order."""
    complete_groups: tuple[GroupId, ...]
    """Complete training groups without a position."""
    assigned_groups: tuple[GroupId, ...]
    """Groups of the step being filled, by position."""
    assigned_staleness: tuple[int, ...]
    promoted_groups: tuple[GroupId, ...]
    critical_groups: tuple[GroupId, ...]
    running_rollouts: int
    waiting_rollouts: tuple[RolloutId, ...]
    """Open rollouts on no engine host."""
    sandboxes: int
    engines_granted: int
    hosts: tuple[HostView, ...]
    evaluation: EvaluationView | None
    blocked: str | None
    failed_share: float
    checkpoint_step: int | None


def view_job(state: State, job: JobRecord) -> JobView:
    """The present snapshot of a job."""
    training = sorted(job.training_groups(), key=order.order_key(job))
    unfinished = [group for group in training if group.is_unfinished]
    assigned = [job.groups[job.positions[position]] for position in sorted(job.positions)]
    members = [rollout for group in job.groups.values() for rollout in group.open_rollouts()]
    return JobView(
        state=job.state,
        reason=job.reason,
        queue_position=job.queue_position if gangs.waits_for_gang(job) else None,
        start=job.start if gangs.waits_for_gang(job) else NO_START,
        committed_step=job.committed,
        filling_step=job.filling,
        open_groups=tuple(group.group_id for group in unfinished),
        complete_groups=tuple(g.group_id for g in training if g.phase is GroupPhase.COMPLETE),
        assigned_groups=tuple(group.group_id for group in assigned),
        assigned_staleness=tuple(group.staleness for group in assigned),
        promoted_groups=tuple(g.group_id for g in unfinished if order.is_promoted(job, g)),
        critical_groups=tuple(g.group_id for g in unfinished if g.is_critical),
        running_rollouts=sum(1 for rollout in members if rollout.host is not None),
        waiting_rollouts=tuple(r.rollout_id for r in members if r.host is None),
        sandboxes=job.sandboxes,
        engines_granted=0 if job.gang is None else job.gang.engines,
        hosts=_view_hosts(state, job),
        evaluation=_view_evaluation(job),
        blocked=job.blocked,
        failed_share=job.failed_tries / len(job.tries) if job.tries else 0.0,
        checkpoint_step=job.checkpoint.written_step,
    )


def _view_hosts(state: State, job: JobRecord) -> tuple[HostView, ...]:
    known = (state.hosts.get(host_id) for host_id in sorted(job.epochs))
    return tuple(
        HostView(host.host_id, host.kind, host.epoch, host.version, host.load)
        for host in known
        if host is not None and host.is_live
    )


def _view_evaluation(job: JobRecord) -> EvaluationView | None:
    if not job.evaluations:
        return None
    current = job.evaluations[0]
    groups = [group for group in job.groups.values() if not group.is_training]
    unfinished = sum(1 for group in groups if group.is_unfinished)
    return EvaluationView(step=current.step, opened=current.opened, unfinished=unfinished)
