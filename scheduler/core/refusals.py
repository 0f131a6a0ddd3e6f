"""`accept`: refuses what is late, foreign or a repetition, by identity alone.

Everything that passes here may be folded without further questions about who sent it. A refusal
changes nothing; it is counted by reason.
"""

from dataclasses import dataclass
from enum import StrEnum

from domain.events import (
    BudgetSpent,
    CheckpointWritten,
    DesiredChanged,
    EngineSynced,
    EngineSyncFailed,
    EvaluationScored,
    Event,
    ForksDeclined,
    GradeFailed,
    GroupGraded,
    HostJoined,
    HostLost,
    JobSubmitted,
    NodeReported,
    PayloadLost,
    RolloutClosed,
    SandboxReady,
    StateRestored,
    StepCommitted,
    Tick,
    TrainerFailed,
    TrainerReady,
    TryFailed,
    TurnFinished,
    TurnSampled,
)
from domain.ids import attempt_of_host
from domain.states import Desired, HostKind, JobState
from scheduler.core.records import GroupPhase, SandboxState
from scheduler.core.state import State


class RefusalReason(StrEnum):
    """Why an event was not folded."""

    FOREIGN = "foreign"
    """No active job, attempt, group, rollout or host of that name."""
    EPOCH = "epoch"
    TRY = "try"
    HOP = "hop"
    GRADE_EPOCH = "grade_epoch"
    GENERATION = "generation"
    STEP = "step"
    CLOSED = "closed"
    """The rollout has an end, or the core's own close is on its way."""
    DUPLICATE = "duplicate"
    ACTIVE = "active"
    """Another attempt of the job still runs."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that was refused, with the number that it lost against."""

    reason: RefusalReason
    detail: str = ""


FOREIGN = Refusal(RefusalReason.FOREIGN)
DUPLICATE = Refusal(RefusalReason.DUPLICATE)


def check(state: State, event: Event) -> Refusal | None:
    """None when the event may be folded."""
    match event:
        case TurnSampled() | TurnFinished() | SandboxReady() | TryFailed() | RolloutClosed():
            return _check_rollout(state, event)
        case StateRestored() | Tick():
            return None
        case JobSubmitted() | DesiredChanged():
            return _check_wish(state, event)
        case BudgetSpent():
            return _check_budget(state, event)
        case HostJoined() | HostLost():
            return _check_host(state, event)
        case NodeReported() | ForksDeclined():
            return _check_node(state, event)
        case GroupGraded() | GradeFailed():
            return _check_grade(state, event)
        case EngineSynced() | EngineSyncFailed():
            return _check_sync(state, event)
        case EvaluationScored():
            job = state.job_of(event.attempt_id)
            return FOREIGN if job is None else DUPLICATE if job.reached_step is not None else None
        case _:
            return _check_trainer(state, event)


def _check_wish(state: State, event: JobSubmitted | DesiredChanged) -> Refusal | None:
    if isinstance(event, JobSubmitted):
        if event.plan.attempt_id in state.attempts or event.plan.attempt_id in state.ended:
            return DUPLICATE
        return Refusal(RefusalReason.ACTIVE) if event.plan.job_id in state.jobs else None
    job = state.jobs.get(event.job_id)
    if job is None:
        return FOREIGN
    if event.generation < job.generation:
        return Refusal(RefusalReason.GENERATION, f"{event.generation} < {job.generation}")
    is_known = event.generation == job.generation and event.desired is job.desired
    return DUPLICATE if is_known else None


def _check_budget(state: State, event: BudgetSpent) -> Refusal | None:
    job = state.jobs.get(event.job_id)
    if job is None:
        return FOREIGN
    is_heard = job.pause_wanted is not None or job.desired is not Desired.RUN
    return DUPLICATE if is_heard or job.state in (JobState.PAUSING, JobState.PAUSED) else None


def _check_host(state: State, event: HostJoined | HostLost) -> Refusal | None:
    known = state.hosts.get(event.host_id)
    job = state.job_of(attempt_of_host(event.host_id))
    is_node = known is not None and known.kind is HostKind.NODE
    if isinstance(event, HostJoined):
        is_node = event.kind is HostKind.NODE
    if not is_node and (job is None or job.gang is None):
        return FOREIGN
    if isinstance(event, HostLost) and is_node and known is None:
        return FOREIGN
    highest = state.node_epochs if is_node or job is None else job.epochs
    lost = state.lost_nodes if is_node or job is None else job.lost_epochs
    least = max(highest.get(event.host_id, 0), lost.get(event.host_id, -1) + 1)
    if event.epoch < least:
        return Refusal(RefusalReason.EPOCH, f"{event.epoch} < {least}")
    return None


def _check_node(state: State, event: NodeReported | ForksDeclined) -> Refusal | None:
    if isinstance(event, NodeReported):
        name, epoch = event.host_id, event.epoch
    else:
        name, epoch = event.node, event.node_epoch
        if state.find_group(event.group_id) is None:
            return FOREIGN
    host = state.hosts.get(name)
    if host is None or host.kind is not HostKind.NODE:
        return FOREIGN
    if host.epoch != epoch or not host.is_live:
        return Refusal(RefusalReason.EPOCH, f"{epoch} is not {host.epoch}")
    return None


def _check_rollout(
    state: State, event: SandboxReady | TurnSampled | TurnFinished | TryFailed | RolloutClosed
) -> Refusal | None:
    found = state.find_rollout(event.rollout_id)
    if found is None:
        return FOREIGN
    _, _, rollout = found
    is_reread = isinstance(event, RolloutClosed) and event.reread
    if not rollout.is_open:
        return Refusal(RefusalReason.CLOSED)
    if rollout.is_closing and not isinstance(event, RolloutClosed):
        return Refusal(RefusalReason.CLOSED)
    if event.try_ != rollout.try_ and not is_reread:
        return Refusal(RefusalReason.TRY, f"{event.try_} is not {rollout.try_}")
    if isinstance(event, SandboxReady):
        node = state.hosts.get(event.node)
        if node is None or node.epoch != event.node_epoch or rollout.node != event.node:
            return Refusal(RefusalReason.EPOCH)
        is_awaited = rollout.sandbox in (SandboxState.ASKED, SandboxState.UNKNOWN)
        return None if is_awaited else DUPLICATE
    if isinstance(event, TryFailed) and rollout.sandbox is SandboxState.ASKED:
        # Only a node agent can speak of a try that was never placed, and it knows no hop yet.
        return None
    if event.hop != rollout.hop and not is_reread:
        return Refusal(RefusalReason.HOP, f"{event.hop} is not {rollout.hop}")
    if isinstance(event, TurnFinished | TurnSampled):
        if rollout.host is None:
            return Refusal(RefusalReason.HOP, "its placement was lost")
        return DUPLICATE if event.turn <= rollout.turn else None
    return None


def _check_grade(state: State, event: GroupGraded | GradeFailed) -> Refusal | None:
    found = state.find_group(event.group_id)
    if found is None:
        return FOREIGN
    _, group = found
    if group.phase in (GroupPhase.COMPLETE, GroupPhase.ASSIGNED):
        return DUPLICATE
    is_reread = isinstance(event, GroupGraded) and event.reread
    if group.phase is GroupPhase.OPEN or (event.grade_epoch != group.grade_epoch and not is_reread):
        return Refusal(RefusalReason.GRADE_EPOCH, f"{event.grade_epoch} is not {group.grade_epoch}")
    if isinstance(event, GradeFailed) and group.phase is not GroupPhase.GRADING:
        return DUPLICATE
    return None


def _check_sync(state: State, event: EngineSynced | EngineSyncFailed) -> Refusal | None:
    host = state.hosts.get(event.host_id)
    if host is None or host.kind is not HostKind.ENGINE:
        return FOREIGN
    if host.epoch != event.epoch or not host.is_live:
        return Refusal(RefusalReason.EPOCH, f"{event.epoch} is not {host.epoch}")
    if isinstance(event, EngineSynced):
        return DUPLICATE if event.version <= host.version else None
    return None if event.version == host.syncing else DUPLICATE


def _check_trainer(
    state: State,
    event: TrainerReady | StepCommitted | TrainerFailed | PayloadLost | CheckpointWritten,
) -> Refusal | None:
    job = state.job_of(event.attempt_id)
    if job is None or job.gang is None:
        return FOREIGN
    match event:
        case TrainerReady():
            host = state.hosts.get(event.host_id)
            if host is None or host.epoch != event.epoch or not host.is_live:
                return Refusal(RefusalReason.EPOCH)
            if event.policy.version < job.committed:
                return Refusal(RefusalReason.STEP, f"{event.policy.version} < {job.committed}")
        case StepCommitted():
            if event.step < job.filling:
                return DUPLICATE
            if event.step > job.filling:
                return Refusal(RefusalReason.STEP, f"{event.step} is not {job.filling}")
        case PayloadLost():
            group = job.groups.get(event.group_id)
            if event.step != job.filling or group is None or group.position is None:
                return DUPLICATE
        case CheckpointWritten():
            if event.step <= (job.checkpoint.written_step or -1):
                return DUPLICATE
        case TrainerFailed():
            pass
    return None
