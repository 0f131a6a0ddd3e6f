"""Why a rollout waits, and why no further group starts: one closed reason each, with its numbers.

Reads the state and changes nothing; of a strategy it asks only what learns nothing from being asked
(`Rules.holds_back`), or a look at a schedule would change what is decided after it. The reasons follow
the rules that decide (`forks.py`, `placement.py`, `grading.py`, `batches.py`, `pacing.py`), in the order
in which they do; that the last step has its groups comes before all bounds, which it outlasts.
"""

from dataclasses import dataclass

from domain.plan import OnNoSignal
from domain.schedule import NextGroup, Numbers, WaitReason, room_numbers
from domain.states import JobState
from scheduler.core import evaluation, pacing, placement
from scheduler.core.holdings import sandboxes_free
from scheduler.core.records import (
    GroupPhase,
    GroupRecord,
    JobRecord,
    Lack,
    RolloutRecord,
    SandboxState,
)
from scheduler.core.state import State
from scheduler.core.weights import is_current


@dataclass(frozen=True, slots=True)
class Wait:
    """A reason with its numbers."""

    reason: WaitReason
    numbers: Numbers = ()


def wait_of(
    state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, now: float
) -> Wait:
    """What stands between a live rollout and its next progress."""
    if not rollout.is_open:
        return _after_end(job, group)
    if rollout.is_closing:
        return Wait(WaitReason.CANCELLING)
    if rollout.host is not None:
        return Wait(WaitReason.RUNNING)
    is_unsettled = rollout.expected_on is not None or rollout.is_unclaimed
    if is_unsettled or rollout.sandbox is SandboxState.UNKNOWN:
        return Wait(WaitReason.WAITS_FOR_HOST)
    if not job.is_running:
        return Wait(WaitReason.JOB_NOT_RUNNING)
    match rollout.sandbox:
        case SandboxState.WANTED:
            return _without_sandbox(state, job, group, rollout, now)
        case SandboxState.ASKED:
            return Wait(WaitReason.SANDBOX_STARTS, (("asked_at", rollout.asked_at),))
        case _:
            return _without_place(state, job, group, rollout)


def next_group(state: State, job: JobRecord, now: float) -> tuple[NextGroup, Numbers]:
    """Whether the job may start one more training group; else the first rule that forbids it."""
    groups = job.training_groups()
    unfinished = sum(1 for group in groups if group.is_unfinished)
    if not job.is_running:
        return NextGroup.JOB_NOT_RUNNING, ()
    last_max = pacing.last_max(job)
    if len(groups) >= last_max:
        numbers = (("alive", len(groups)), ("max", last_max), ("last_step", job.plan.max_steps))
        return NextGroup.LAST_STEP, numbers
    engines = state.engines_of(job)
    if not engines:
        return NextGroup.WAITS_FOR_ENGINE, ()
    version = pacing.newest_version([engine for engine in engines if is_current(job, engine)])
    weights = (("served", pacing.newest_version(engines)), ("committed", job.committed))
    if version < 0:
        return NextGroup.WAITS_FOR_WEIGHTS, weights
    if unfinished >= pacing.open_max(job):
        return NextGroup.ACTIVE_BATCH, (("open", unfinished), ("max", pacing.open_max(job)))
    if len(groups) >= pacing.alive_max(job, version):
        alive_max = pacing.alive_max(job, job.committed)
        if len(groups) < alive_max:
            return NextGroup.WAITS_FOR_WEIGHTS, weights
        return NextGroup.STALENESS, (("alive", len(groups)), ("max", alive_max))
    is_probing = unfinished > 0
    waits_for_signal = job.signal.is_waiting and job.plan.on_no_signal is OnNoSignal.WAIT
    if waits_for_signal and (is_probing or now < job.signal.probe_after):
        return NextGroup.WAITS_FOR_SIGNAL, (("until", job.signal.probe_after),)
    if pacing.is_failing(job) and (is_probing or now < job.probe_after):
        return NextGroup.WAITS_FOR_SUCCESS, (("until", job.probe_after),)
    held = job.rules.holds_back(state, job, now)
    if held is not None:
        return NextGroup.HELD_BY_STRATEGY, held
    if evaluation.has_backlog(job):
        return NextGroup.EVALUATION, ()
    if job.lack is not None:
        return NextGroup.SANDBOXES, lacking(job.lack)
    free = sandboxes_free(state)
    if free < job.plan.group_size or not state.nodes():
        return NextGroup.SANDBOXES, (("free", free), ("needed", job.plan.group_size))
    return NextGroup.MAY_START, ()


def lacking(lack: Lack) -> Numbers:
    """What nodes have too little of, for so many members together."""
    asked = (("members", lack.members),)
    return (*room_numbers(lack.resource, lack.needed, lack.available), *asked)


def _after_end(job: JobRecord, group: GroupRecord) -> Wait:
    match group.phase:
        case GroupPhase.OPEN:
            left = len(group.open_rollouts())
            return Wait(WaitReason.WAITS_FOR_SIBLINGS, (("open", left), ("of", group.size)))
        case GroupPhase.GRADING:
            numbers = (("asked_at", group.grade_asked_at), ("failures", group.grade_failures))
            return Wait(WaitReason.WAITS_FOR_GRADE, numbers)
        case GroupPhase.ASSIGNED:
            filled = (("filled", len(job.positions)), ("of", job.plan.groups_per_batch))
            return Wait(WaitReason.IN_BATCH, (("step", job.filling), *filled))
        case _ if job.state not in (JobState.RUNNING, JobState.PAUSING):
            return Wait(WaitReason.JOB_NOT_RUNNING)
        case GroupPhase.CLOSED:
            return Wait(WaitReason.WAITS_FOR_GRADE, (("failures", group.grade_failures),))
        case GroupPhase.COMPLETE:
            return _complete(job, group)


def _complete(job: JobRecord, group: GroupRecord) -> Wait:
    if not group.is_training:
        step = group.policy_version
        unfinished = sum(1 for one in evaluation.groups_of(job, step) if one.is_unfinished)
        begun = (("unfinished", unfinished), ("unopened", evaluation.unopened(job)))
        return Wait(WaitReason.WAITS_FOR_EVALUATION, (("step", step), *begun))
    numbers = (
        ("step", job.filling),
        ("filled", len(job.positions)),
        ("of", job.plan.groups_per_batch),
        ("last_valid_step", job.last_valid_step(group)),
    )
    return Wait(WaitReason.WAITS_FOR_BATCH, numbers)


def _without_sandbox(
    state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, now: float
) -> Wait:
    if rollout.not_before > now:
        numbers = (
            ("until", rollout.not_before),
            ("failed", rollout.failed_tries),
            ("tries", job.plan.tries),
        )
        return Wait(WaitReason.RETRY_BACKOFF, numbers)
    nodes = state.nodes()
    holds_some = any(one.sandbox is not SandboxState.WANTED for one in group.rollouts)
    is_bound_away = holds_some and all(node.host_id != group.node for node in nodes)
    if not nodes or is_bound_away:
        return Wait(WaitReason.WAITS_FOR_NODE, (("nodes", len(nodes)),))
    if job.lack is not None:
        return Wait(WaitReason.WAITS_FOR_SANDBOX, lacking(job.lack))
    free = max(sandboxes_free(state), 0)
    numbers = (("free", free), ("needed", 1), ("of", state.pool.sandboxes))
    return Wait(WaitReason.WAITS_FOR_SANDBOX, numbers)


def _without_place(
    state: State, job: JobRecord, group: GroupRecord, rollout: RolloutRecord
) -> Wait:
    engines = state.engines_of(job)
    if not engines:
        return Wait(WaitReason.WAITS_FOR_ENGINE)
    if rollout.is_suspended:
        held = ("kv_held", sum(engine.kv_held for engine in engines))
        return Wait(
            WaitReason.PAUSED_BY_PRESSURE,
            (held, ("kv_tokens", sum(engine.kv_tokens for engine in engines))),
        )
    nodes = state.nodes()
    if all(node.host_id != rollout.node for node in nodes):
        return Wait(WaitReason.WAITS_FOR_NODE, (("nodes", len(nodes)),))
    if group.is_training:
        serving = [e for e in engines if is_current(job, e) and e.version >= group.policy_version]
    else:
        serving = [e for e in engines if e.version == group.policy_version]
    if not serving:
        versions = (("needs", group.policy_version), ("served", pacing.newest_version(engines)))
        return Wait(WaitReason.WAITS_FOR_WEIGHTS, (*versions, ("committed", job.committed)))
    numbers = (
        ("engines", len(serving)),
        ("on_them", sum(engine.load for engine in serving)),
        ("slots", sum(engine.slots for engine in serving)),
    )
    fits = any(placement.may_run(job, group, engine) for engine in serving)
    if fits and group.is_training and job.rules.holds_places:
        return Wait(WaitReason.HELD_BY_STRATEGY, numbers)
    return Wait(WaitReason.WAITS_FOR_PLACE, numbers)
