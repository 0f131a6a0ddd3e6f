"""The life of a job: submit, provision, run, pause, resume, cancel, finish, fail.

Each function looks at what is true now and makes the moves that follow, so that a repeated event or a
new leader never repeats an effect. A state is shown before the gang is released: a leader that dies
between the two finds hosts without an active attempt and releases them.
"""

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import Final

from domain.commands import EndTry, SetJobState, WriteCheckpoint
from domain.events import (
    CheckpointWritten,
    DesiredChanged,
    EvaluationScored,
    JobSubmitted,
    StepCommitted,
)
from domain.plan import JobLimits
from domain.policy import PolicyRef
from domain.states import Desired, DropReason, End, JobState, move
from scheduler.core import batches, evaluation, failures, gangs, pacing, roster, weights
from scheduler.core.records import Checkpointing, GroupPhase, JobRecord
from scheduler.core.state import Pass

CHECKPOINT_WAIT_S: Final = 120.0
"""Longest wait of a pause or cancel for its checkpoint or for a step that is closing. Giving up loses
nothing: recovery re-applies the recorded steps on the checkpoint before."""

TARGET_REACHED: Final = "target_reached"
"""Reason of a job that an evaluation's number ended."""

GROUPS_ENDED_MAX: Final = 64
"""Groups that a pause or a cancel ends in one step; the next ones go on."""

HOST_LOSSES_MAX: Final = 8
"""Losses of an attempt's trainer without a committed step, or of its engines without a finished
rollout, before the job fails: a host that dies at every start must not be started for ever."""


def submit(run: Pass, event: JobSubmitted) -> JobRecord:
    """Take a new job into the queue."""
    plan = event.plan
    run.state.arrivals += 1
    job = JobRecord(
        plan=plan,
        generation=event.generation,
        desired=Desired.RUN,
        state=JobState.VALIDATING,
        arrival=run.state.arrivals,
        base_step=event.base_step,
        committed=event.base_step,
        next_ordinal=event.next_ordinal,
        unconsumed=deque(sorted(event.unconsumed)),
        checkpoint=Checkpointing(written_step=event.base_step or None),
        progress_at=run.now,
    )
    run.state.jobs[plan.job_id] = job
    run.state.attempts[plan.attempt_id] = job
    job.state = move(job.state, JobState.QUEUED)
    run.queue_wanted = True
    return job


def change_desired(run: Pass, job: JobRecord, event: DesiredChanged) -> None:
    """Fold the user's wish or new limits; what follows from them is `advance`'s matter."""
    is_wish = event.is_wish or event.desired is not job.desired
    job.generation, job.desired = event.generation, event.desired
    if event.limits is not None and event.limits != job.plan.limits:
        _adopt_limits(run, job, event.limits)
    if is_wish and event.desired is Desired.RUN:
        job.pause_wanted = None
        job.signal.is_waiting = False
        job.signal.flat_groups.clear()
        failures.forget_tries(job)
        if job.state in (JobState.PAUSING, JobState.PAUSED):
            job.reason = None
    run.touch(job)


def pause_for(run: Pass, job: JobRecord, reason: str) -> None:
    """Pause for a reason of the platform's own; the user's wish to run ends it."""
    job.pause_wanted = reason
    run.touch(job)


def _adopt_limits(run: Pass, job: JobRecord, limits: JobLimits) -> None:
    """Take new limits; a committed step, or one that is full and will be made, is never undone."""
    job.plan = replace(job.plan, priority=limits.priority)
    _move_last_step(run, job, max(limits.max_steps, _sure_step(job)))
    run.grants_wanted = run.queue_wanted = True


def _sure_step(job: JobRecord) -> int:
    """The last step that is committed, or full and will be."""
    is_full = len(job.positions) == job.plan.groups_per_batch
    return job.filling if is_full else job.committed


def _move_last_step(run: Pass, job: JobRecord, last: int) -> None:
    job.plan = replace(job.plan, max_steps=last)
    hold_limit(run, job)
    if job.policy is not None and job.policy.version == job.committed:
        evaluation.begin_due(job, job.policy)
    job.batch_is_old = True


def note_score(run: Pass, job: JobRecord, event: EvaluationScored) -> None:
    """An evaluation gave its number; at the target the job ends."""
    target = job.plan.target_eval
    if target is not None and event.selected is not None and event.selected >= target:
        job.reached_step = event.step
        run.touch(job)


def _end_at_target(run: Pass, job: JobRecord) -> None:
    """Once the target is reached nothing more is trained than what is sure to come."""
    if job.reached_step is not None and job.plan.max_steps > _sure_step(job):
        _move_last_step(run, job, _sure_step(job))
        run.grants_wanted = True


def hold_limit(run: Pass, job: JobRecord) -> None:
    """The last step is never below a committed one, and no group lives for a step that never comes.

    Groups in the step being filled stay: their places are rows, and the limit may be raised again.
    """
    if job.committed > job.plan.max_steps:
        job.plan = replace(job.plan, max_steps=job.committed)
    surplus = job.roster.training - pacing.kept_max(job)
    if surplus <= 0:
        return
    loose = [group for group in job.training_groups() if group.phase is not GroupPhase.ASSIGNED]
    loose.sort(
        key=lambda g: (g.phase is not GroupPhase.COMPLETE, job.last_valid_step(g), g.ordinal)
    )
    for group in loose[-surplus:]:
        failures.drop_group(run, job, group, DropReason.CANCELLED, "max_steps was lowered")


def advance(run: Pass, job: JobRecord) -> None:
    """Make the moves that the present facts allow."""
    _end_at_target(run, job)
    if job.desired is Desired.CANCEL and job.state is not JobState.CANCELLING:
        _begin_cancel(run, job)
    wants_pause = job.desired is Desired.PAUSE or job.pause_wanted is not None
    match job.state:
        case JobState.QUEUED if wants_pause:
            run.set_state(job, JobState.PAUSED, job.pause_wanted)
            run.queue_wanted = True
        case JobState.PROVISIONING | JobState.RESUMING:
            _pause_or_start(run, job, wants_pause)
        case JobState.RUNNING if wants_pause:
            _begin_pause(run, job)
        case JobState.RUNNING:
            _finish_if_done(run, job)
        case JobState.PAUSED if not wants_pause:
            _begin_resume(run, job)
        case _:
            pass
    if job.state is JobState.PAUSING:
        _drain(run, job)
    if job.state is JobState.CANCELLING:
        _cancel(run, job)


def restore_trainer(run: Pass, job: JobRecord, policy: PolicyRef) -> None:
    """The trainer is ready: catch up with steps that the core has not heard of, repeat requests."""
    while job.committed < policy.version:
        _count_step(run, job)
    job.policy = policy
    job.batch_is_old = job.weights_are_old = True
    evaluation.begin_due(job, policy)
    if job.is_closing_step:
        job.is_closing_step = False
        batches.close_if_full(run, job)
    job.checkpoint.asked_step = None
    run.touch(job)


def commit_step(run: Pass, job: JobRecord, event: StepCommitted) -> None:
    """A step is durable: its groups are consumed, the next one begins."""
    _count_step(run, job)
    job.policy = event.policy
    evaluation.begin_due(job, event.policy)
    run.touch(job)
    run.grants_wanted = True


def note_checkpoint(run: Pass, job: JobRecord, event: CheckpointWritten) -> None:
    """A checkpoint is whole."""
    checkpoint = job.checkpoint
    checkpoint.written_step = max(event.step, checkpoint.written_step or 0)
    if checkpoint.asked_step is not None and event.step >= checkpoint.asked_step:
        checkpoint.asked_step = None
    run.touch(job)


def ask_due_checkpoint(run: Pass, job: JobRecord) -> None:
    """Every n steps and at the end; asked again of a new trainer as long as it is not written.

    Where an evaluation may end the job, each evaluated step has one.
    """
    if not job.is_running:
        return
    every = job.plan.checkpoint_every
    due = job.committed - job.committed % every if every > 0 else 0
    if job.plan.target_eval is not None and evaluation.is_due(job, job.committed):
        due = job.committed
    if job.committed >= job.plan.max_steps > job.base_step:
        _ask_checkpoint(run, job, "final")
    elif due > job.base_step and due > (job.checkpoint.written_step or 0):
        _ask_checkpoint(run, job, "periodic")


def fail_job(run: Pass, job: JobRecord, code: str, component: str, cause: str) -> None:
    """End the attempt for a reason that no retry inside it can cure."""
    for group in list(job.groups.values()):
        failures.drop_group(run, job, group, DropReason.CANCELLED, f"job failed: {code}")
    job.state = move(job.state, JobState.FAILED)
    run.emit(
        SetJobState(
            job_id=job.plan.job_id,
            state=job.state,
            observed_generation=job.generation,
            reason=cause,
            failure_code=code,
            failure_component=component,
            failure_hint=cause,
            retryable=code == "host_lost",
        )
    )
    _forget(run, job)


def _pause_or_start(run: Pass, job: JobRecord, wants_pause: bool) -> None:
    if wants_pause:
        _begin_pause(run, job)
        return
    trainer = run.state.trainer_of(job)
    engines = [engine for engine in run.state.engines_of(job) if engine.version >= 0]
    is_whole = len(engines) >= job.plan.engines_min and bool(run.state.nodes())
    if job.policy is None or trainer is None or not trainer.is_ready or not is_whole:
        return
    run.set_state(job, JobState.RUNNING)
    job.progress_at = run.now
    job.ranks_are_old = job.batch_is_old = run.grants_wanted = True


def _begin_pause(run: Pass, job: JobRecord) -> None:
    run.set_state(job, JobState.PAUSING, job.pause_wanted)
    job.draining_since, job.is_drained = run.now, False


def _drain(run: Pass, job: JobRecord) -> None:
    """Wait for open work within the drain time, then end open tries, checkpoint, release."""
    if not job.is_drained:
        if _is_busy(run, job) and run.now - job.draining_since < job.plan.drain_s:
            return
        if not _end_open_tries(run, job):
            run.leave(job)
            return
        job.is_drained, job.draining_since = True, run.now
    if not _is_settled(run, job, "pause"):
        return
    run.set_state(job, JobState.PAUSED, job.pause_wanted)
    gangs.release_gang(run, job)
    if job.desired is Desired.RUN and job.pause_wanted is None:
        _begin_resume(run, job)


def _is_busy(run: Pass, job: JobRecord) -> bool:
    """Whether anything of the job could still end by itself."""
    if job.sandboxes > 0:
        return True
    return bool(run.state.nodes()) and bool(job.roster.closed or job.roster.grading)


def _end_open_tries(run: Pass, job: JobRecord) -> bool:
    """End what still runs; False when as many groups as a step may take left some."""
    for group in list(job.roster.grading.values()):
        roster.move(run.state, job, group, GroupPhase.CLOSED)
    holding = (group for group in job.groups.values() if failures.holding(group))
    for group in islice(holding, GROUPS_ENDED_MAX):
        for rollout in failures.holding(group):
            failures.end_try(
                run,
                job,
                group,
                rollout,
                EndTry(
                    rollout_id=rollout.rollout_id,
                    try_=rollout.try_,
                    hop=rollout.hop,
                    end=End.CANCELLED,
                    cause="paused",
                    next_try=rollout.try_ + 1,
                    counts=False,
                ),
            )
    return next(holding, None) is None


def _begin_resume(run: Pass, job: JobRecord) -> None:
    run.state.arrivals += 1
    job.arrival = run.state.arrivals
    run.set_state(job, JobState.RESUMING)
    job.is_drained = False
    job.progress_at = run.now
    run.queue_wanted = True


def _begin_cancel(run: Pass, job: JobRecord) -> None:
    if job.state in (JobState.QUEUED, JobState.PAUSED):
        _drop_all(run, job)
        run.set_state(job, JobState.CANCELLED)
        _forget(run, job)
        return
    run.set_state(job, JobState.CANCELLING)
    job.draining_since = run.now


def _cancel(run: Pass, job: JobRecord) -> None:
    """Wait for a closing step and for the checkpoint, then give everything back."""
    if not _drop_some(run, job, keep_closing_step=True) or not _is_settled(run, job, "cancel"):
        return
    if not _drop_some(run, job, keep_closing_step=False):
        return
    run.set_state(job, JobState.CANCELLED)
    _forget(run, job)


def _drop_some(run: Pass, job: JobRecord, keep_closing_step: bool) -> bool:
    """Drop the groups; False when as many as a step may take left some to the next one."""
    is_kept = keep_closing_step and job.is_closing_step
    meant = [g for g in job.groups.values() if not (is_kept and g.phase is GroupPhase.ASSIGNED)]
    for group in meant[:GROUPS_ENDED_MAX]:
        failures.drop_group(run, job, group, DropReason.CANCELLED, "job cancelled")
    if len(meant) > GROUPS_ENDED_MAX:
        run.leave(job)
    return len(meant) <= GROUPS_ENDED_MAX


def _drop_all(run: Pass, job: JobRecord) -> None:
    for group in list(job.groups.values()):
        failures.drop_group(run, job, group, DropReason.CANCELLED, "job cancelled")


def _is_settled(run: Pass, job: JobRecord, reason: str) -> bool:
    """No step is closing and the newest step is in a checkpoint, or the wait for both is over."""
    trainer = run.state.trainer_of(job)
    may_wait = run.now - job.draining_since < CHECKPOINT_WAIT_S and job.gang is not None
    is_covered = job.committed == job.base_step or job.checkpoint.written_step == job.committed
    if not may_wait or (is_covered and not job.is_closing_step):
        return True
    if trainer is not None and trainer.is_ready and not job.is_closing_step:
        _ask_checkpoint(run, job, reason)
    return False


def _ask_checkpoint(run: Pass, job: JobRecord, reason: str) -> None:
    """Ask the trainer once for a checkpoint of the last committed step."""
    checkpoint, trainer = job.checkpoint, run.state.trainer_of(job)
    if checkpoint.written_step == job.committed or checkpoint.asked_step == job.committed:
        return
    if trainer is None or not trainer.is_ready:
        return
    checkpoint.asked_step = job.committed
    run.emit(WriteCheckpoint(attempt_id=job.attempt_id, step=job.committed, reason=reason))


def _finish_if_done(run: Pass, job: JobRecord) -> None:
    is_covered = job.committed == job.base_step or job.checkpoint.written_step == job.committed
    if job.committed < job.plan.max_steps or not is_covered:
        return
    is_evaluated = not job.evaluations and (
        job.committed in job.evaluated or not evaluation.is_due(job, job.committed)
    )
    if not is_evaluated or not weights.all_synced(run, job):
        return
    batches.give_up_step(run, job)
    _drop_all(run, job)
    run.set_state(job, JobState.SUCCEEDED, TARGET_REACHED if job.reached_step is not None else None)
    _forget(run, job)


def _forget(run: Pass, job: JobRecord) -> None:
    """The job is terminal: release what it holds; later events of its attempt are foreign."""
    gangs.release_gang(run, job)
    run.state.forget(job)
    run.touched.pop(job.plan.job_id, None)


def _count_step(run: Pass, job: JobRecord) -> None:
    taken = batches.consume(run.state, job)
    hold_limit(run, job)
    job.rules.on_step(run, job, taken)
    job.trainer_losses = 0
    job.progress_at = run.now
    job.pace.note_step(run.now)
    job.blocked = None
    job.batch_is_old = True
