"""Frozen snapshots of a job for the API and for people; the core itself never reads them."""

from dataclasses import dataclass
from typing import Final

from domain.ids import GroupId, HostId, JobId, RolloutId
from domain.schedule import Lane, NextGroup, Numbers, RolloutStage, WaitReason
from domain.states import HostKind, JobState
from kv.ranks import RankClass
from scheduler.core import gangs, order, pacing, waits
from scheduler.core.forecast import NO_START, Start
from scheduler.core.holdings import sandboxes_free
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord, RolloutRecord
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
    filling_step: int | None
    """None when all steps are committed."""
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
        filling_step=_filling(job),
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


@dataclass(frozen=True, slots=True)
class MemberView:
    """One rollout of a live group, with what it waits for."""

    rollout_id: RolloutId
    stage: RolloutStage
    wait_reason: WaitReason
    numbers: Numbers
    since: float
    """When it last made progress."""
    try_: int
    hop: int
    rank: int
    turn: int
    tokens: int
    host: HostId | None
    node: HostId | None
    """Of its sandbox; its siblings may be on others."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One live group."""

    group_id: GroupId
    lane: Lane
    ordinal: int
    opened_at: float
    eta_s: float
    staleness: int | None
    """If it entered the step being filled now; frozen once assigned; None before its first token."""
    last_valid_step: int | None
    """None of an evaluation."""
    position: int | None
    node: HostId | None
    members: tuple[MemberView, ...]


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The groups of a job in the order in which they are served, and what bounds them."""

    state: JobState
    filling_step: int | None
    """None when all steps are committed."""
    need: int
    """Groups that the next batch still lacks."""
    next_group: NextGroup
    next_group_numbers: Numbers
    groups: tuple[GroupView, ...]
    """The first of all lanes, in the order of `Lane`."""
    lanes: tuple[tuple[Lane, int], ...]
    """Groups of each lane, those that are not in `groups` included."""
    open_groups: int
    open_max: int
    running_rollouts: int
    slots: int
    sandboxes_free: int
    sandboxes_total: int


def view_schedule(state: State, job_id: JobId, now: float, groups_max: int) -> ScheduleView | None:
    """The schedule of an active job with at most `groups_max` groups; None when it is not active."""
    job = state.jobs.get(job_id)
    if job is None:
        return None
    lanes = _lanes(job)
    ordered = [(lane, group) for lane in Lane for group in lanes[lane]]
    reason, numbers = waits.next_group(state, job, now)
    return ScheduleView(
        state=job.state,
        filling_step=_filling(job),
        need=0 if _filling(job) is None else order.need(job),
        next_group=reason,
        next_group_numbers=numbers,
        groups=tuple(_view_group(state, job, *one, now) for one in ordered[:groups_max]),
        lanes=tuple((lane, len(lanes[lane])) for lane in Lane),
        open_groups=sum(1 for group in job.training_groups() if group.is_unfinished),
        open_max=pacing.open_max(job),
        running_rollouts=sum(engine.load for engine in state.engines_of(job)),
        slots=sum(engine.slots for engine in state.engines_of(job)),
        sandboxes_free=max(sandboxes_free(state), 0),
        sandboxes_total=state.pool.sandboxes - state.pool.grading_reserve,
    )


def _filling(job: JobRecord) -> int | None:
    return job.filling if job.committed < job.plan.max_steps else None


def lane_of(job: JobRecord, group: GroupRecord) -> Lane:
    """The lane of a live group."""
    if group.phase is GroupPhase.ASSIGNED:
        return Lane.ASSIGNED
    if not group.is_training:
        return Lane.EVALUATION
    if group.phase is GroupPhase.COMPLETE:
        return Lane.COMPLETE
    return _LANES[RankClass(order.class_of(job, group))]


_LANES: Final = {
    RankClass.EVALUATION: Lane.EVALUATION,
    RankClass.PROMOTED: Lane.PROMOTED,
    RankClass.CRITICAL: Lane.CRITICAL,
    RankClass.NORMAL: Lane.NORMAL,
}
"""Lane of an unfinished group by the class that it is ranked in."""


def _served(group: GroupRecord) -> tuple[int, int]:
    """By the ranks that its rollouts have: a strategy is not asked again, it might learn from it."""
    members = group.open_rollouts() or group.rollouts
    return min(rollout.rank for rollout in members), group.ordinal


def _lanes(job: JobRecord) -> dict[Lane, list[GroupRecord]]:
    lanes: dict[Lane, list[GroupRecord]] = {lane: [] for lane in Lane}
    for group in job.groups.values():
        lanes[lane_of(job, group)].append(group)
    for lane, groups in lanes.items():
        match lane:
            case Lane.ASSIGNED:
                groups.sort(key=lambda group: (group.position or 0, group.ordinal))
            case Lane.COMPLETE:
                groups.sort(key=lambda g: (job.last_valid_step(g), g.completed_as, g.ordinal))
            case _:
                groups.sort(key=_served)
    return lanes


def _view_group(
    state: State, job: JobRecord, lane: Lane, group: GroupRecord, now: float
) -> GroupView:
    oldest = group.oldest_known_version()
    staleness = None if oldest is None else max(job.filling - 1 - oldest, 0)
    return GroupView(
        group_id=group.group_id,
        lane=lane,
        ordinal=group.ordinal,
        opened_at=group.opened_at,
        eta_s=order.eta_s(job, group),
        staleness=group.staleness if lane is Lane.ASSIGNED else staleness,
        last_valid_step=job.last_valid_step(group) if group.is_training else None,
        position=group.position,
        node=group.node,
        members=tuple(_view_member(state, job, group, one, now) for one in group.rollouts),
    )


def _view_member(
    state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, now: float
) -> MemberView:
    wait = waits.wait_of(state, job, group, rollout, now)
    stage = RolloutStage.WAITING if rollout.host is None else RolloutStage.PLACED
    return MemberView(
        rollout_id=rollout.rollout_id,
        stage=stage if rollout.is_open else RolloutStage.ENDED,
        wait_reason=wait.reason,
        numbers=wait.numbers,
        since=rollout.progress_at if rollout.is_open else group.progress_at,
        try_=rollout.try_,
        hop=rollout.hop,
        rank=rollout.rank,
        turn=rollout.turn,
        tokens=rollout.tokens,
        host=rollout.host,
        node=rollout.node,
    )
