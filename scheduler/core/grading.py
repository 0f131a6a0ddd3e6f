"""From the last close of a group to its verdicts.

A closed group is graded by one node agent under a rising epoch; a grader that fails, dies or passes
its deadline is retried a bounded number of times, then the group is unscorable, never zero. Groups
without reward variance are dropped before they count; a whole batch of them is `no_signal`.
"""

from typing import Final

from domain.commands import GradeGroup, NoteJob
from domain.events import GroupGraded, RolloutClosed
from domain.ids import HostId
from domain.plan import OnNoSignal
from domain.states import DropReason, JobState
from scheduler.core import order, roster
from scheduler.core.failures import check_members, count_try, drop_group, least_usable
from scheduler.core.holdings import let_go
from scheduler.core.records import GroupPhase, GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.state import Pass

GRADE_FAILURES_MAX: Final = 3
"""Failed gradings before the group is unscorable: a grader that kills its host must not loop."""

GRADE_DEADLINE_S: Final = 600.0
"""An unanswered grading is tried again; rewards have their own, shorter timeouts at the agent."""

NO_SIGNAL_PROBE_S: Final = 30.0
"""Pause between probe groups under `on_no_signal: wait`: looks for variance without burning tokens."""

NO_SIGNAL_SHOWN_MAX: Final = 16
"""Groups named in a no_signal note; the rest is found through the groups' dispositions."""

GRADING_STATES: Final = frozenset({JobState.RUNNING, JobState.PAUSING})
"""States in which the attempt's environment processes may run rewards."""


def close_rollout_record(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, event: RolloutClosed
) -> None:
    """Fold the end of a rollout; the last one closes its group."""
    let_go(run.state, job, group, rollout)
    job.rules.on_left(run, job, group, rollout)
    run.grants_wanted = True
    rollout.end, rollout.is_closing = event.end, False
    rollout.tokens, rollout.sampled_tokens, rollout.turn = (
        event.tokens,
        event.sampled_tokens,
        event.turns,
    )
    rollout.oldest_version = event.oldest_version
    if not rollout.is_lost:
        job.history.add_rollout(event.turns, event.sampled_tokens, rollout.tool_s, group.task)
        job.engine_losses = 0
        count_try(run, job, failure=None)
    group.progress_at = run.now
    run.touch(job)
    if not check_members(run, job, group):
        return
    roster.note_versions(job, group)
    order.note_progress(run, job, group)
    if not group.open_rollouts():
        roster.move(run.state, job, group, GroupPhase.CLOSED)


def ask_grades(run: Pass, job: JobRecord) -> None:
    """Hand closed groups to a node agent: the one of their sandboxes, else the least loaded."""
    if job.state not in GRADING_STATES or job.is_drained:
        return
    if not job.roster.closed:
        return
    nodes = run.state.nodes()
    for group in list(job.roster.closed.values()):
        if all(rollout.is_lost for rollout in group.rollouts):
            drop_group(run, job, group, DropReason.UNSALVAGEABLE, "no rollout has a trajectory")
        elif nodes:
            _ask_grade(run, job, group, _choose_node(group, nodes))


def repeat_grades(run: Pass, job: JobRecord, node: HostRecord) -> None:
    """A node came back with the same epoch: repeat what it may not have heard or answered."""
    for group in job.roster.grading.values():
        if group.grade_node == node.host_id:
            run.emit(_grade_command(group, node))


def accept_grade(run: Pass, job: JobRecord, group: GroupRecord, event: GroupGraded) -> None:
    """Fold verdicts: complete, or dropped before it counts."""
    group.progress_at = job.progress_at = run.now
    job.blocked = None
    job.batch_is_old = True
    run.touch(job)
    run.grants_wanted = True
    if not group.is_training:
        roster.move(run.state, job, group, GroupPhase.COMPLETE)
        return
    if event.usable < least_usable(job, group) or event.oldest_version is None:
        cause = f"{event.usable} of {group.size} rollouts are scored"
        drop_group(run, job, group, DropReason.UNSCORABLE, cause)
        return
    if event.zero_variance:
        drop_group(run, job, group, DropReason.ZERO_VARIANCE)
        _count_flat(run, job, group)
        return
    job.signal.flat_groups.clear()
    job.signal.is_waiting = False
    job.history.add_group(run.now - group.opened_at)
    job.completed_groups += 1
    group.completed_as = job.completed_groups
    group.usable, group.mean_reward = event.usable, event.mean_reward
    group.oldest_version = event.oldest_version
    roster.note_versions(job, group)
    roster.move(run.state, job, group, GroupPhase.COMPLETE)


def fail_grade(run: Pass, job: JobRecord, group: GroupRecord, cause: str) -> None:
    """Ask again under the next epoch, or give the group up as unscorable."""
    group.grade_failures += 1
    roster.move(run.state, job, group, GroupPhase.CLOSED)
    group.grade_node = None
    run.touch(job)
    if group.grade_failures >= GRADE_FAILURES_MAX:
        drop_group(run, job, group, DropReason.UNSCORABLE, cause)


def check_deadlines(run: Pass, job: JobRecord) -> None:
    """A grading that is not answered in time counts as failed."""
    for group in list(job.roster.grading.values()):
        if run.now - group.grade_asked_at <= GRADE_DEADLINE_S:
            break
        fail_grade(run, job, group, "grading passed its deadline")


def fail_grades_on(run: Pass, job: JobRecord, node: HostId) -> None:
    """The node agent that graded is gone."""
    for group in list(job.roster.grading.values()):
        if group.grade_node == node:
            fail_grade(run, job, group, "node_agent_lost")


def _ask_grade(run: Pass, job: JobRecord, group: GroupRecord, node: HostRecord) -> None:
    roster.move(run.state, job, group, GroupPhase.GRADING)
    group.grade_node = node.host_id
    group.grade_epoch += 1
    group.grade_asked_at = run.now
    run.emit(_grade_command(group, node))


def _grade_command(group: GroupRecord, node: HostRecord) -> GradeGroup:
    return GradeGroup(
        group_id=group.group_id,
        grade_epoch=group.grade_epoch,
        node=node.host_id,
        node_epoch=node.epoch,
        purpose=group.purpose,
    )


def _choose_node(group: GroupRecord, nodes: list[HostRecord]) -> HostRecord:
    for node in nodes:
        if node.host_id == group.node:
            return node
    return min(nodes, key=lambda node: (node.load, node.host_id))


def _count_flat(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    """A whole batch without variance is `no_signal`: say so and do what the spec says."""
    job.signal.flat_groups.append(group.group_id)
    if len(job.signal.flat_groups) < job.plan.groups_per_batch and not job.signal.is_waiting:
        return
    job.signal.probe_after = run.now + NO_SIGNAL_PROBE_S
    if job.signal.is_waiting:
        job.blocked = "no_signal"
        return
    shown = job.signal.flat_groups[-NO_SIGNAL_SHOWN_MAX:]
    action = job.plan.on_no_signal
    body = (("action", action.value), ("groups", " ".join(shown)))
    run.emit(NoteJob(job_id=job.plan.job_id, type="job.no_signal", body=body))
    job.signal.flat_groups.clear()
    match action:
        case OnNoSignal.WAIT:
            job.signal.is_waiting = True
            job.blocked = "no_signal"
        case OnNoSignal.PAUSE:
            job.pause_wanted = "no_signal: no group of a whole batch had any reward variance"
        case OnNoSignal.SKIP:
            pass
