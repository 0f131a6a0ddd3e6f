"""Held-out evaluation of one pinned policy version: when it is due, how it opens, when it ends.

Due at step 0, every n steps and at the last step. Its groups rank ahead of training, enter neither
pacing nor `need` nor a batch, and run only on engines that serve exactly the pinned version. While one
is unfinished, engines at that version defer their sync (`weights.py`) up to a named limit; past it,
or when no engine can serve the version any more, the evaluation ends with what it has.
"""

from typing import Final

from domain.commands import FinishEvaluation, NoteJob
from domain.ids import EVALUATION_ORDINAL_BASE, EVALUATION_ORDINALS_PER_STEP
from domain.policy import PolicyRef
from domain.states import End, HostKind
from scheduler.core import roster
from scheduler.core.failures import close_rollout
from scheduler.core.records import EvaluationRun, GroupRecord, JobRecord
from scheduler.core.state import Pass, State

EVALUATION_SYNC_DEFER_S: Final = 900.0
"""Longest time that weight syncs wait for an evaluation; training must not stand still for its tail."""

EVALUATION_ROLLOUTS_PER_SLOT: Final = 2
"""Open evaluation rollouts per engine slot: enough to hide tool gaps, far fewer than all 256 tasks."""


def is_due(job: JobRecord, step: int) -> bool:
    """Whether the plan asks for an evaluation of this step's policy."""
    plan = job.plan.evaluation
    if plan is None:
        return False
    if step in (0, job.plan.max_steps):
        return True
    every = plan.every_steps
    return bool(every) and step > job.base_step and step % (every or 1) == 0


def begin_due(job: JobRecord, policy: PolicyRef) -> None:
    """Queue the evaluation of this policy if one is due and neither done nor queued."""
    step = policy.version
    known = next((run for run in job.evaluations if run.step == step), None)
    if known is not None:
        known.policy = policy
    elif is_due(job, step) and step not in job.evaluated:
        job.evaluations.append(EvaluationRun(step=step, policy=policy))
    job.weights_are_old = True


def groups_of(job: JobRecord, step: int) -> list[GroupRecord]:
    """Live groups of the evaluation of this step."""
    return [g for g in job.roster.evaluating.values() if g.policy_version == step]


def has_backlog(job: JobRecord) -> bool:
    """Whether evaluation groups wait to be opened; training opens nothing before them."""
    return unopened(job) > 0


def may_open(state: State, job: JobRecord) -> bool:
    """Whether one more evaluation group may open now."""
    plan = job.plan.evaluation
    if plan is None or not has_backlog(job):
        return False
    engines = [e for e in state.engines_of(job) if e.version == job.evaluations[0].step]
    slots = EVALUATION_ROLLOUTS_PER_SLOT * sum(max(engine.slots, 1) for engine in engines)
    open_now = sum(len(group.open_rollouts()) for group in job.roster.evaluating.values())
    return bool(engines) and (open_now == 0 or open_now + plan.rollouts_per_task <= slots)


def take_ordinal(job: JobRecord) -> int:
    """Take the ordinal of the next evaluation group."""
    current = job.evaluations[0]
    current.opened += 1
    return first_ordinal(current.step) + current.opened - 1


def first_ordinal(step: int) -> int:
    """First ordinal of the evaluation of this step."""
    return EVALUATION_ORDINAL_BASE + step * EVALUATION_ORDINALS_PER_STEP


def place_of(ordinal: int) -> tuple[int, int]:
    """The step that an evaluation ordinal belongs to, and its place there."""
    return divmod(ordinal - EVALUATION_ORDINAL_BASE, EVALUATION_ORDINALS_PER_STEP)


def finish_done(run: Pass, job: JobRecord) -> None:
    """End evaluations that have no unfinished group left, oldest first; their groups leave."""
    while job.evaluations:
        current = job.evaluations[0]
        groups = groups_of(job, current.step)
        if _unopened(job, current) > 0 or any(group.is_unfinished for group in groups):
            return
        for group in groups:
            roster.remove(run.state, job, group)
        job.evaluations.pop(0)
        job.weights_are_old = True
        job.evaluated.add(current.step)
        run.emit(FinishEvaluation(attempt_id=job.attempt_id, step=current.step))
        run.grants_wanted = True


def check_limits(run: Pass, job: JobRecord) -> None:
    """Abandon an evaluation that holds back the weights for too long or that nobody can serve."""
    if not job.evaluations or job.evaluations[0].is_abandoned:
        return
    current = job.evaluations[0]
    since = current.deferring_since
    if since is not None and run.now - since > EVALUATION_SYNC_DEFER_S:
        _abandon(run, job, current, "sync_deferral_limit")
    elif not _may_be_served(run.state, job, current):
        _abandon(run, job, current, "no_engine_serves_the_version")


def unopened(job: JobRecord) -> int:
    """Groups of the evaluation that runs which are still to be opened."""
    return _unopened(job, job.evaluations[0]) if job.evaluations else 0


def _unopened(job: JobRecord, current: EvaluationRun) -> int:
    plan = job.plan.evaluation
    return 0 if plan is None or current.is_abandoned else plan.tasks - current.opened


def _may_be_served(state: State, job: JobRecord, current: EvaluationRun) -> bool:
    """An engine serves this version, one may be sent to it, or one whose fate is open may serve it."""
    versions = [engine.version for engine in state.engines_of(job)]
    if current.step in versions:
        return True
    if current.policy is not None and (not versions or min(versions) < current.step):
        return True
    return any(True for _ in state.expected_hosts(HostKind.ENGINE, job.attempt_id))


def _abandon(run: Pass, job: JobRecord, current: EvaluationRun, cause: str) -> None:
    current.is_abandoned = job.weights_are_old = True
    body = (("step", str(current.step)), ("cause", cause), ("opened", str(current.opened)))
    run.emit(NoteJob(job_id=job.plan.job_id, type="job.evaluation_cut_short", body=body))
    for group in groups_of(job, current.step):
        for rollout in group.open_rollouts():
            close_rollout(run, job, group, rollout, (End.CANCELLED, cause))
    run.touch(job)
