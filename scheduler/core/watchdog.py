"""Never silently stuck: names the blocked resource when nothing has completed for too long.

The bound comes from the job's own history with the plan's floor. A group that the step being filled
waits for and that makes no progress within the bound is given up, so that the wait without a clock in
`batches.py` ends.
"""

from typing import Final

from domain.commands import NoteJob
from domain.schedule import NextGroup, WaitReason
from domain.states import DropReason, JobState
from scheduler.core import evaluation, pacing, waits
from scheduler.core.failures import drop_group
from scheduler.core.holdings import sandboxes_free
from scheduler.core.records import GroupPhase, JobRecord, RolloutRecord, SandboxState
from scheduler.core.state import Pass
from scheduler.core.weights import is_current

WATCHDOG_FACTOR: Final = 4.0
"""Times the longest recent group: a slow group is no stall, four of its lifetimes without any are."""

WATCHED_STATES: Final = frozenset({JobState.PROVISIONING, JobState.RESUMING, JobState.RUNNING})
"""Pausing and cancelling have their own named limits; a queued job shows its queue reason."""


def bound_s(job: JobRecord) -> float:
    """Seconds without a completed group after which the job names what it waits for."""
    return max(job.plan.watchdog_s, WATCHDOG_FACTOR * job.history.longest_group_s)


def watch(run: Pass, job: JobRecord) -> None:
    """Note a stall once per bound, and give up promoted groups that stand still."""
    if job.state not in WATCHED_STATES or job.gang is None:
        return
    bound = bound_s(job)
    is_served = bool(run.state.engines_of(job)) and bool(run.state.nodes())
    if job.is_running and job.rules.paces and is_served:
        _give_up_promoted(run, job, bound)
    waited = run.now - job.progress_at
    if waited <= bound or run.now - job.blocked_noted_at <= bound:
        return
    resource, detail = blocked_resource(run, job)
    job.blocked, job.blocked_noted_at = resource, run.now
    body = (("resource", resource), ("detail", detail), ("waited_s", f"{waited:.1f}"))
    run.emit(NoteJob(job_id=job.plan.job_id, type="job.stalled", body=body))


def blocked_resource(run: Pass, job: JobRecord) -> tuple[str, str]:
    """The resource that stands between the job and its next completed group, with its numbers."""
    trainer, engines = run.state.trainer_of(job), run.state.engines_of(job)
    if trainer is None or not trainer.is_ready:
        return "trainer", "no trainer host is ready"
    if not engines:
        return "engine", "no engine host of the attempt is live"
    if not run.state.nodes():
        return "node", "no sandbox node agent is live"
    if not any(is_current(job, engine) for engine in engines):
        versions = " ".join(str(engine.version) for engine in engines)
        return "weights", f"committed {job.committed}, engines serve {versions}"
    if job.is_closing_step:
        return "trainer", f"step {job.filling} is full and not committed"
    if pacing.last_max(job) == 0 and not job.groups and not job.evaluations:
        return _blocked_at_end(job)
    return _blocked_in_groups(run, job)


def _blocked_at_end(job: JobRecord) -> tuple[str, str]:
    """All steps are committed: the checkpoint of the last one, and engines that serve it, are left."""
    if job.checkpoint.written_step != job.committed > job.base_step:
        return "trainer", f"the checkpoint of step {job.committed} is not written"
    return "weights", f"not every engine serves step {job.committed}"


def _blocked_in_groups(run: Pass, job: JobRecord) -> tuple[str, str]:
    grading = [g for g in job.groups.values() if g.phase in (GroupPhase.CLOSED, GroupPhase.GRADING)]
    members = [r for group in job.groups.values() for r in group.open_rollouts()]
    placed = [rollout for rollout in members if rollout.host is not None]
    if placed:
        slowest = min(placed, key=lambda rollout: (rollout.progress_at, rollout.rollout_id))
        silent = run.now - slowest.progress_at
        return "rollout", f"{slowest.rollout_id} on {slowest.host} is silent for {silent:.1f} s"
    if grading:
        return "grading", f"{len(grading)} closed groups wait for verdicts"
    return _blocked_before_placement(run, job, members)


def _blocked_before_placement(
    run: Pass, job: JobRecord, members: list[RolloutRecord]
) -> tuple[str, str]:
    free = sandboxes_free(run.state)
    if any(rollout.sandbox is SandboxState.ASKED for rollout in members):
        return "sandbox_fork", "a node agent has not answered a fork"
    if job.ready:
        return _blocked_at_places(run, job)
    if job.signal.is_waiting:
        return "no_signal", "no group of a whole batch had any reward variance"
    if pacing.is_failing(job):
        return "failing", f"the last {job.failed_in_row} tries failed, one group at a time is tried"
    if job.lack is not None:
        said = " ".join(f"{name} {value:g}" for name, value in waits.lacking(job.lack))
        return "sandboxes", f"no node has room: {said}"
    if job.wanting or evaluation.has_backlog(job) or free < job.plan.group_size:
        return "sandboxes", f"{free} of {run.state.pool.sandboxes} sandboxes are free for agents"
    reason, numbers = waits.next_group(run.state, job, run.now)
    said = " ".join(f"{name} {value:g}" for name, value in numbers)
    if reason is NextGroup.HELD_BY_STRATEGY:
        return "strategy", f"{job.plan.scheduling.strategy.value} starts no group: {said}"
    alive = job.roster.training
    return (
        "pacing",
        f"{alive} groups alive, {pacing.open_max(job)} may be open: {reason.value} {said}",
    )


def _blocked_at_places(run: Pass, job: JobRecord) -> tuple[str, str]:
    """What keeps the first rollout in line from an engine; a place that is due soon is the weights'."""
    found = [entry for one in job.ready if (entry := run.state.find_rollout(one)) is not None]
    _, group, rollout = min(found, key=lambda entry: (entry[2].rank, entry[2].rollout_id))
    reason = waits.wait_of(run.state, job, group, rollout, run.now).reason
    if reason in (WaitReason.HELD_BY_STRATEGY, WaitReason.PAUSED_BY_PRESSURE):
        name = job.plan.scheduling.strategy.value
        return (
            "strategy",
            f"{name} holds {len(found)} rollouts back from the engines: {reason.value}",
        )
    if reason is WaitReason.WAITS_FOR_NODE:
        return "node", f"the node of {group.group_id} is not live"
    return "weights", f"{len(found)} rollouts wait for an engine with their version"


def _give_up_promoted(run: Pass, job: JobRecord, bound: float) -> None:
    due = job.roster.due
    promoted = [
        group for step in sorted(due) if step <= job.filling for group in due[step].values()
    ]
    for group in promoted:
        # Verdicts have their own deadline and retries (`grading.py`).
        if group.phase is not GroupPhase.OPEN:
            continue
        if run.now - max(group.progress_at, job.progress_at) > bound:
            drop_group(run, job, group, DropReason.UNSALVAGEABLE, "no progress within the bound")
