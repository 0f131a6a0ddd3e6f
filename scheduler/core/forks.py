"""Who gets sandboxes next: tries that lost theirs, then evaluation groups, then training groups.

Agents never take the grading reserve. Between jobs the one with the fewest sandboxes goes first, so
that grants alternate; a job within its guarantee that cannot be served yet stops those beyond theirs,
or single sandboxes would be taken away for ever before a whole group fits.
"""

from dataclasses import dataclass
from typing import Final

from domain.commands import ForkSandboxes, OpenGroup
from domain.ids import group_id, rollout_id
from domain.states import Purpose
from scheduler.core import evaluation, pacing
from scheduler.core.holdings import move_to_node, sandboxes_free, take_sandbox
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord, SandboxState
from scheduler.core.state import Pass
from scheduler.core.weights import is_current

FORK_REPEAT_S: Final = 5.0
"""A fork that is not answered by then is asked again: a node that was full for a moment says nothing
that reaches the core. Idempotent per member, so that one still under way is not made twice."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a job would do next with sandboxes: `sandboxes` is the least that helps it."""

    job: JobRecord
    sandboxes: int
    group: GroupRecord | None = None
    members: tuple[RolloutRecord, ...] = ()
    purpose: Purpose | None = None


def grant(run: Pass) -> None:
    """Hand out free sandboxes until nobody can use one."""
    nodes = run.state.nodes()
    running = [job for job in run.state.jobs.values() if job.is_running]
    while nodes and running:
        running.sort(key=lambda job: (job.sandboxes, job.arrival))
        served = _serve_first(run, running, nodes)
        if served is None:
            return


def _serve_first(run: Pass, running: list[JobRecord], nodes: list[HostRecord]) -> JobRecord | None:
    """Serve the first job in line that can be served; jobs without a want leave the line."""
    is_guarded = False
    for job in list(running):
        want = _next_want(run, job)
        if want is None:
            running.remove(job)
            continue
        guaranteed = 0 if job.gang is None else job.gang.sandboxes
        is_within = job.sandboxes + want.sandboxes <= guaranteed
        if want.sandboxes <= sandboxes_free(run.state) and (is_within or not is_guarded):
            _serve(run, want, nodes)
            return job
        is_guarded = is_guarded or is_within
    return None


def _next_want(run: Pass, job: JobRecord) -> Want | None:
    waiting = _waiting_members(run, job)
    if waiting is not None:
        return Want(job=job, sandboxes=1, group=waiting[0], members=waiting[1])
    if evaluation.may_open(run.state, job) and job.plan.evaluation is not None:
        return Want(job, job.plan.evaluation.rollouts_per_task, purpose=Purpose.EVALUATION)
    if evaluation.has_backlog(job):
        return None
    version = pacing.newest_version([e for e in run.state.engines_of(job) if is_current(job, e)])
    if pacing.may_open(run, job, version):
        return Want(job, job.plan.group_size, purpose=Purpose.TRAIN)
    return None


def _waiting_members(
    run: Pass, job: JobRecord
) -> tuple[GroupRecord, tuple[RolloutRecord, ...]] | None:
    """The best-ranked rollout whose next try may start now, with its siblings in the same state."""
    found = [run.state.find_rollout(rollout) for rollout in job.wanting]
    due = [
        entry
        for entry in found
        if entry is not None and entry[2].not_before <= run.now and _has_node(run, entry[1])
    ]
    if not due:
        return None
    group = min(due, key=lambda entry: (entry[2].rank, entry[2].rollout_id))[1]
    return group, tuple(rollout for _, g, rollout in due if g is group)


def _has_node(run: Pass, group: GroupRecord) -> bool:
    """Its node is live, or the group holds nothing there and may go to another."""
    node = None if group.node is None else run.state.hosts.get(group.node)
    if node is not None and node.is_live:
        return True
    return all(rollout.sandbox is SandboxState.WANTED for rollout in group.rollouts)


def _serve(run: Pass, want: Want, nodes: list[HostRecord]) -> None:
    if want.group is not None:
        members = want.members[: sandboxes_free(run.state)]
        _fork(run, want.job, want.group, members, nodes)
    elif want.purpose is not None:
        group = _open(run, want.job, want.purpose, want.sandboxes)
        _fork(run, want.job, group, tuple(group.rollouts), nodes)


def _open(run: Pass, job: JobRecord, purpose: Purpose, size: int) -> GroupRecord:
    if purpose is Purpose.EVALUATION:
        ordinal = evaluation.take_ordinal(job)
        version = job.evaluations[0].step
    else:
        engines = [e for e in run.state.engines_of(job) if is_current(job, e)]
        ordinal, version = pacing.next_ordinal(job), pacing.newest_version(engines)
    name = group_id(job.attempt_id, ordinal)
    group = GroupRecord(
        group_id=name,
        ordinal=ordinal,
        purpose=purpose,
        size=size,
        policy_version=version,
        opened_at=run.now,
        opened_at_step=job.committed,
        rollouts=[RolloutRecord(rollout_id(name, index), index) for index in range(size)],
        progress_at=run.now,
    )
    job.groups[group.group_id] = group
    job.ranks_are_old = True
    job.rules.on_opened(run, job, group)
    run.emit(
        OpenGroup(
            attempt_id=job.attempt_id,
            group_id=group.group_id,
            ordinal=ordinal,
            purpose=purpose,
            size=size,
            policy_version=version,
        )
    )
    return group


def _fork(
    run: Pass,
    job: JobRecord,
    group: GroupRecord,
    members: tuple[RolloutRecord, ...],
    nodes: list[HostRecord],
) -> None:
    """Ask the group's node, or the least loaded one when it has none, for these tries."""
    node = next((node for node in nodes if node.host_id == group.node), None)
    if node is None:
        node = min(nodes, key=lambda node: (node.load, node.host_id))
        move_to_node(run.state, group, node.host_id)
    for rollout in members:
        take_sandbox(run.state, job, group, rollout, SandboxState.ASKED)
        rollout.asked_at = rollout.progress_at = run.now
    run.emit(fork_command(group, node, members))


def fork_command(
    group: GroupRecord, node: HostRecord, members: tuple[RolloutRecord, ...]
) -> ForkSandboxes:
    """The request for the current tries of these members; the same members again are harmless."""
    return ForkSandboxes(
        group_id=group.group_id,
        node=node.host_id,
        node_epoch=node.epoch,
        members=tuple((rollout.rollout_id, rollout.try_) for rollout in members),
    )


def repeat_forks(run: Pass, job: JobRecord, node: HostRecord | None = None) -> None:
    """Ask again for what a node has not answered: all of a node that came back, else the overdue."""
    for group in job.groups.values():
        host = None if group.node is None else run.state.hosts.get(group.node)
        if host is None or not host.is_live or (node is not None and host is not node):
            continue
        asked = tuple(
            rollout
            for rollout in group.rollouts
            if rollout.sandbox is SandboxState.ASKED
            and (node is not None or run.now - rollout.asked_at > FORK_REPEAT_S)
        )
        for rollout in asked:
            rollout.asked_at = run.now
        if asked:
            run.emit(fork_command(group, host, asked))
