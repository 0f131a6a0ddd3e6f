"""The coordinator: the only entry to the core.

    event -> accept (refuse by identity) -> step: fold the fact -> settle the touched jobs
          -> grant sandboxes and gangs -> commands

The shell calls `accept`, then `step` for what was accepted, one event after the other. Folding changes
records only where the fact demands it; settling asks each rule in a fixed order what follows, from what
is true now, so that a repeated or a lost event never repeats or loses an effect.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final, assert_never

from domain.commands import Command, ReleaseGang, SetJobState
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
from domain.ids import AttemptId, JobId
from domain.plan import Pool
from domain.states import JobState
from scheduler.core import (
    batches,
    evaluation,
    failures,
    forks,
    gangs,
    grading,
    hosts,
    invariants,
    lifecycle,
    order,
    pacing,
    placement,
    recovery,
    refusals,
    roster,
    views,
    watchdog,
    weights,
)
from scheduler.core.holdings import hold_sandbox, note_tokens
from scheduler.core.records import GroupRecord, JobRecord, RolloutRecord
from scheduler.core.refusals import Refusal, RefusalReason
from scheduler.core.state import Pass, State

BACKLOG_MAX: Final = 4
"""Jobs that one step settles only because an earlier one left work of them."""


class Coordinator:
    """Decides; never waits, never acts. Deterministic in the sequence of (now, event)."""

    def __init__(self, pool: Pool, checking: bool = True) -> None:
        self._state = State(pool=pool)
        self.checking = checking
        """Whether the invariants are checked after every step."""
        self.refusals: Counter[RefusalReason] = Counter()
        """Refused events by reason."""
        self.suspect: JobId | None = None
        """The job that was handled when `step` last raised an AssertionError; to be quarantined."""
        self._unsent: list[Command] = []

    @property
    def state(self) -> State:
        """The soft state, for views, invariants and tests; nobody else changes it."""
        return self._state

    def accept(self, event: Event) -> Refusal | None:
        """None when the event may be folded; otherwise the counted reason why not."""
        refusal = refusals.check(self._state, event)
        if refusal is not None:
            self.refusals[refusal.reason] += 1
        return refusal

    def step(self, now: float, event: Event) -> list[Command]:
        """Fold one accepted fact and say what must follow. `now` never goes back, in seconds."""
        run = Pass(state=self._state, now=now)
        try:
            _fold(run, event)
            _settle(run)
            if self.checking:
                invariants.check(self._state, run.commands)
        except AssertionError as error:
            broken = error.job_id if isinstance(error, invariants.InvariantBroken) else None
            self.suspect = broken or run.current
            self._unsent = run.commands
            raise
        return run.commands

    def quarantine(self, job_id: JobId) -> list[Command]:
        """Drop a job whose folding raised; it fails as internal, everything else goes on.

        Returns the commands that the raising step had already decided, then the job's end.
        """
        unsent, self._unsent = self._unsent, []
        job = self._state.jobs.get(job_id)
        if job is None:
            return unsent
        self._state.forget(job)
        for host in [h for h in self._state.hosts.values() if h.attempt_id == job.attempt_id]:
            del self._state.hosts[host.host_id]
        self._state.sandboxes = sum(other.sandboxes for other in self._state.jobs.values())
        for host in self._state.nodes():
            host.load = sum(
                1
                for other in self._state.jobs.values()
                for group in other.groups.values()
                for rollout in group.rollouts
                if rollout.node == host.host_id
            )
        return [
            *unsent,
            SetJobState(
                job_id=job_id,
                state=JobState.FAILED,
                observed_generation=job.generation,
                reason="internal",
                failure_code="internal",
                failure_component="scheduler",
                failure_hint="the job's state broke an invariant and was set aside",
                retryable=True,
            ),
            ReleaseGang(job_id=job_id, attempt_id=job.attempt_id),
        ]

    def view(self, job_id: JobId) -> views.JobView | None:
        """Snapshot of an active job; None when it is not active."""
        job = self._state.jobs.get(job_id)
        return None if job is None else views.view_job(self._state, job)

    def dump(self, job_id: JobId) -> str:
        """The job's whole record as text, to be kept when it is quarantined."""
        return repr(self._state.jobs.get(job_id))

    def data_position(self, attempt_id: AttemptId) -> tuple[int, tuple[int, ...]]:
        """Next ordinal and the ordinals issued but not consumed, for a checkpoint taken now."""
        return pacing.data_position(self._state.attempts[attempt_id])


def _fold(run: Pass, event: Event) -> None:
    """Change the records by one fact; the two of every turn come first, they are nearly all events."""
    match event:
        case TurnSampled() | TurnFinished() | SandboxReady() | TryFailed() | RolloutClosed():
            _fold_rollout(run, event)
        case Tick():
            _tick(run)
        case StateRestored():
            recovery.restore(run, event)
        case JobSubmitted():
            run.touch(lifecycle.submit(run, event))
        case DesiredChanged():
            lifecycle.change_desired(run, run.state.jobs[event.job_id], event)
        case BudgetSpent():
            lifecycle.pause_for(run, run.state.jobs[event.job_id], event.reason)
        case HostJoined():
            hosts.join(run, event)
        case HostLost():
            hosts.lose(run, event.host_id, event.epoch, event.cause)
        case NodeReported():
            run.grants_wanted |= run.state.rooms.report(event.host_id, event.room)
        case ForksDeclined():
            forks.decline(run, event)
        case GroupGraded() | GradeFailed():
            _fold_grade(run, event)
        case EngineSynced() | EngineSyncFailed():
            _fold_sync(run, event)
        case TrainerReady() | StepCommitted() | TrainerFailed() | PayloadLost():
            _fold_training(run, run.state.attempts[event.attempt_id], event)
        case CheckpointWritten():
            lifecycle.note_checkpoint(run, run.state.attempts[event.attempt_id], event)
        case EvaluationScored():
            lifecycle.note_score(run, run.state.attempts[event.attempt_id], event)
        case _:
            assert_never(event)


def _fold_rollout(
    run: Pass, event: SandboxReady | TurnSampled | TurnFinished | TryFailed | RolloutClosed
) -> None:
    found = run.state.find_rollout(event.rollout_id)
    assert found is not None, event.rollout_id
    job, group, rollout = found
    run.current = job.plan.job_id
    rollout.progress_at = group.progress_at = run.now
    match event:
        case TurnSampled():
            note_tokens(run.state, group, rollout, event.tokens, event.shared_tokens)
            rollout.gap_since, rollout.expected_tool_s = run.now, event.expected_tool_s
            job.rules.on_gap(run, job, group, rollout)
        case TurnFinished():
            _finish_turn(run, found, event)
        case SandboxReady():
            hold_sandbox(run.state, job, rollout)
            order.note_task(run, job, group, event.task)
            placement.wait_for_place(job, rollout)
            run.touch(job)
        case TryFailed():
            failures.fail_try(run, job, group, rollout, (event.end, event.cause))
            run.touch(job)
        case RolloutClosed():
            grading.close_rollout_record(run, job, group, rollout, event)


def _finish_turn(
    run: Pass, member: tuple[JobRecord, GroupRecord, RolloutRecord], event: TurnFinished
) -> None:
    job, group, rollout = member
    note_tokens(run.state, group, rollout, event.tokens, event.shared_tokens)
    former, rollout.turn, rollout.gap_since = rollout.turn, event.turn, None
    rollout.remaining = event.remaining or rollout.remaining
    rollout.sampled_tokens, rollout.tool_s = event.sampled_tokens, event.tool_s
    if rollout.oldest_version != event.oldest_version:
        rollout.oldest_version = event.oldest_version
        if roster.note_versions(job, group):
            run.touch(job)
    order.note_turn(run, job, group, rollout, former)
    job.rules.on_turn(run, job, group, rollout)


def _fold_grade(run: Pass, event: GroupGraded | GradeFailed) -> None:
    found = run.state.find_group(event.group_id)
    assert found is not None, event.group_id
    run.current = found[0].plan.job_id
    if isinstance(event, GroupGraded):
        grading.accept_grade(run, *found, event)
    else:
        grading.fail_grade(run, *found, event.cause)


def _fold_sync(run: Pass, event: EngineSynced | EngineSyncFailed) -> None:
    engine = run.state.hosts[event.host_id]
    job = run.state.job_of(engine.attempt_id)
    assert job is not None, event.host_id
    run.current = job.plan.job_id
    if isinstance(event, EngineSynced):
        weights.confirm_sync(run, job, engine, event.version)
    else:
        weights.fail_sync(run, job, engine, event.cause)


def _fold_training(
    run: Pass, job: JobRecord, event: TrainerReady | StepCommitted | TrainerFailed | PayloadLost
) -> None:
    run.current = job.plan.job_id
    match event:
        case TrainerReady():
            run.state.hosts[event.host_id].is_ready = True
            lifecycle.restore_trainer(run, job, event.policy)
        case StepCommitted():
            lifecycle.commit_step(run, job, event)
        case TrainerFailed():
            lifecycle.fail_job(run, job, event.code, "trainer", event.cause)
        case PayloadLost():
            batches.replace_member(run, job, job.groups[event.group_id], event.cause)


def _tick(run: Pass) -> None:
    """What only time can bring: deadlines, back-off, drains, the watchdog."""
    run.grants_wanted = run.queue_wanted = True
    for job in list(run.state.jobs.values()):
        run.current = job.plan.job_id
        weights.check_deadlines(run, job)
        job.weights_are_old = True
        grading.check_deadlines(run, job)
        evaluation.check_limits(run, job)
        forks.repeat_forks(run, job)
        watchdog.watch(run, job)
        if job.is_running:
            job.rules.on_tick(run, job)
        run.touch(job)


def _settle(run: Pass) -> None:
    """Ask each rule what follows; jobs in the order in which they were touched."""
    if run.state.backlog or run.state.bereft or run.state.is_grant_cut:
        _take_up(run)
    if run.touched or run.grants_wanted or run.queue_wanted:
        _settle_touched(run)
    for job_id in run.unranked:
        job = run.state.jobs.get(job_id)
        if job is not None:
            order.rank_job(run, job)
    if run.ranks:
        run.flush_ranks()


def _take_up(run: Pass) -> None:
    """Go on with what a bound of the last step left."""
    state = run.state
    if state.is_grant_cut:
        state.is_grant_cut, run.grants_wanted = False, True
    for job_id in list(islice(state.backlog, BACKLOG_MAX)):
        del state.backlog[job_id]
        run.touch(state.jobs[job_id])
    hosts.go_on_with_losses(run)


def _settle_touched(run: Pass) -> None:
    for job in _touched(run):
        lifecycle.advance(run, job)
    if run.queue_wanted:
        run.queue_wanted = False
        gangs.grant_gangs(run)
    for job in _touched(run):
        _settle_work(run, job)
    if run.grants_wanted:
        forks.grant(run)
    for job in _touched(run):
        lifecycle.advance(run, job)
        if job.said_generation != job.generation:
            run.say_state(job)
    if run.queue_wanted:
        gangs.grant_gangs(run)


def _settle_work(run: Pass, job: JobRecord) -> None:
    grading.ask_grades(run, job)
    lifecycle.ask_due_checkpoint(run, job)
    batches.fill(run, job)
    evaluation.finish_done(run, job)
    weights.sync_engines(run, job)
    order.rank_job(run, job)
    placement.place_ready(run, job)


def _touched(run: Pass) -> Iterator[JobRecord]:
    """Touched jobs that are still active, each named as the current one while it is handled."""
    for job_id in list(run.touched):
        job = run.state.jobs.get(job_id)
        if job is not None:
            run.current = job_id
            yield job
    run.current = None
