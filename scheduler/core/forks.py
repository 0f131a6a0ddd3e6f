"""Who gets sandboxes next: tries that lost theirs, then evaluation groups, then training groups.

Agents never take the grading reserve. The tenant that holds the least over its weight goes first, and of
its jobs the one with the fewest, so that grants alternate; a job within its guarantee that cannot be
served yet stops those beyond theirs, or single sandboxes would be taken away for ever before a whole
group fits.
"""

from dataclasses import dataclass
from typing import Final

from domain.commands import ForkSandboxes, OpenGroup, ReleaseSandboxes
from domain.events import ForksDeclined
from domain.ids import GroupId, HostId, JobId, group_id, rollout_id
from domain.states import Purpose
from scheduler.core import evaluation, failures, fair_share, pacing, roster, spots
from scheduler.core.holdings import move_to_node, sandboxes_free, take_sandbox
from scheduler.core.node_rooms import Spot
from scheduler.core.records import (
    GroupRecord,
    HostRecord,
    JobRecord,
    Lack,
    RolloutRecord,
    SandboxState,
)
from scheduler.core.state import Pass
from scheduler.core.weights import VERSIONS_BEHIND_MAX

FORK_REPEAT_S: Final = 5.0
"""A fork that is not answered by then is asked again: a node that was full for a moment says nothing
that reaches the core. Idempotent per member, so that one still under way is not made twice."""

GRANTS_MAX: Final = 64
"""Forks of one step; the next one goes on, so that no event waits for hundreds of new groups."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a job would do next with sandboxes: `sandboxes` is the least that helps it."""

    job: JobRecord
    sandboxes: int
    group: GroupRecord | None = None
    members: tuple[RolloutRecord, ...] = ()
    purpose: Purpose | None = None


def grant(run: Pass) -> None:
    """Hand out free sandboxes until nobody can use one, or the bound of a step is reached."""
    state = run.state
    nodes = state.nodes() if sandboxes_free(state) > 0 else []
    known = [state.jobs.get(job_id) for job_id in state.hungry] if nodes else []
    line = [job for job in known if job is not None and job.is_running]
    wants: dict[JobId, Want] = {}
    lacking: set[JobId] = set()
    for _ in range(GRANTS_MAX):
        if not line or not _serve_first(run, line, wants, lacking):
            return
    state.is_grant_cut = True


def _serve_first(
    run: Pass, line: list[JobRecord], wants: dict[JobId, Want], lacking: set[JobId]
) -> bool:
    """Serve the first job in line that can be served; jobs without a want leave the line.

    `lacking` are those that found no room on any node in this step.
    """
    is_guarded = False
    line.sort(key=fair_share.sandbox_key(run.state))
    for job in list(line):
        want = wants.get(job.plan.job_id) or _next_want(run, job)
        if want is None:
            line.remove(job)
            job.lack = None
            run.state.hungry.pop(job.plan.job_id, None)
            continue
        wants[job.plan.job_id] = want
        guaranteed = 0 if job.gang is None else job.gang.sandboxes
        is_within = job.sandboxes + want.sandboxes <= guaranteed
        is_counted = want.sandboxes <= sandboxes_free(run.state)
        if is_counted and (is_within or not is_guarded) and job.plan.job_id not in lacking:
            if _serve(run, want):
                del wants[job.plan.job_id]
                return True
            lacking.add(job.plan.job_id)
        is_guarded = is_guarded or is_within
    return False


def _next_want(run: Pass, job: JobRecord) -> Want | None:
    waiting = _waiting_members(run, job)
    if waiting is not None:
        return Want(job=job, sandboxes=1, group=waiting[0], members=waiting[1])
    if evaluation.may_open(run.state, job) and job.plan.evaluation is not None:
        return Want(job, job.plan.evaluation.rollouts_per_task, purpose=Purpose.EVALUATION)
    if evaluation.has_backlog(job):
        return None
    if pacing.may_open(run, job, _newest_version(run, job)):
        return Want(job, job.plan.group_size, purpose=Purpose.TRAIN)
    return None


def _newest_version(run: Pass, job: JobRecord) -> int:
    """Newest version of the engines that training rollouts may be placed on; -1 without any."""
    version = run.state.newest_version(job)
    return version if job.committed - version <= VERSIONS_BEHIND_MAX else -1


def _waiting_members(
    run: Pass, job: JobRecord
) -> tuple[GroupRecord, tuple[RolloutRecord, ...]] | None:
    """The best-ranked rollout whose next try may start now, with its siblings in the same state."""
    if not job.wanting:
        return None
    due = run.due.get(job.plan.job_id)
    if due is None:
        due = run.due[job.plan.job_id] = _list_due(run, job)
    while due:
        group, members = due[-1]
        waiting = tuple(r for r in members if r.sandbox is SandboxState.WANTED)
        if waiting:
            return group, waiting
        due.pop()
    return None


def _list_due(run: Pass, job: JobRecord) -> list[tuple[GroupRecord, list[RolloutRecord]]]:
    """Waiting tries whose time has come, by group, the group of the best rank last."""
    found = [run.state.find_rollout(rollout) for rollout in job.wanting]
    due = [entry for entry in found if entry is not None and entry[2].not_before <= run.now]
    due.sort(key=lambda entry: (entry[2].rank, entry[2].rollout_id))
    groups: dict[GroupId, tuple[GroupRecord, list[RolloutRecord]]] = {}
    for _, group, rollout in due:
        if group.group_id in groups:
            groups[group.group_id][1].append(rollout)
        elif _has_node(run, group):
            groups[group.group_id] = (group, [rollout])
    return list(reversed(groups.values()))


def _has_node(run: Pass, group: GroupRecord) -> bool:
    """Its node is live, or the group holds nothing there and may go to another."""
    node = None if group.node is None else run.state.hosts.get(group.node)
    if node is not None and node.is_live:
        return True
    return all(rollout.sandbox is SandboxState.WANTED for rollout in group.rollouts)


def _serve(run: Pass, want: Want) -> bool:
    """Ask nodes for what is wanted; False where none has room for it."""
    members = want.members[: sandboxes_free(run.state)]
    size = want.sandboxes if want.group is None else len(members)
    chosen = spots.choose(run, want.job, want.group, size)
    if not chosen:
        return False
    group = want.group
    if group is None:
        assert want.purpose is not None, "a want is of a group or of a purpose"
        group = _open(run, want.job, want.purpose, want.sandboxes)
        members = tuple(group.rollouts)
    _fork(run, want.job, group, members, chosen)
    return True


def _open(run: Pass, job: JobRecord, purpose: Purpose, size: int) -> GroupRecord:
    if purpose is Purpose.EVALUATION:
        ordinal = evaluation.take_ordinal(job)
        version = job.evaluations[0].step
    else:
        ordinal, version = pacing.next_ordinal(job), _newest_version(run, job)
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
    roster.admit(run.state, job, group)
    run.unranked[job.plan.job_id] = None
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
    chosen: tuple[Spot, ...],
) -> None:
    """Ask each node for its part; members beyond all parts go on waiting."""
    home = None if group.node is None else run.state.hosts.get(group.node)
    if home is None or not home.is_live or not group.held_on:
        move_to_node(run.state, group, chosen[0].node)
    start = 0
    for spot in chosen:
        part = members[start : start + spot.members]
        start += spot.members
        for rollout in part:
            member = (group, rollout)
            take_sandbox(run.state, job, member, SandboxState.ASKED, spot.node, part=spot.part)
            rollout.asked_at = rollout.progress_at = run.now
        run.emit(fork_command(group, run.state.hosts[spot.node], part))
    for rollout in members[start:]:
        job.wanting[rollout.rollout_id] = None


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


def decline(run: Pass, event: ForksDeclined) -> None:
    """A node had no room: its part is placed anew, elsewhere first. By counts it is just asked again.

    The release makes sure of it: a fork that was repeated while the answer was on its way is undone.
    """
    found = run.state.find_group(event.group_id)
    assert found is not None, event.group_id
    job, group = found
    if not spots.is_by_room(run.state, job):
        return
    run.current = job.plan.job_id
    tries = dict(event.members)
    declined = [
        one
        for one in group.rollouts
        if tries.get(one.rollout_id) == one.try_
        and one.sandbox is SandboxState.ASKED
        and one.node == event.node
    ]
    if not declined:
        return
    group.refused_at[event.node] = run.now
    members = tuple((rollout.rollout_id, rollout.try_) for rollout in declined)
    run.emit(ReleaseSandboxes(event.node, event.node_epoch, members))
    for rollout in declined:
        failures.want_again(run, job, group, rollout)
    resource = event.rule.partition(".")[0]
    job.lack = Lack(resource, event.needed, event.available, run.now, len(declined))
    run.touch(job)


def repeat_forks(run: Pass, job: JobRecord, node: HostRecord | None = None) -> None:
    """Ask again for what a node has not answered: all of a node that came back, else the overdue."""
    asked: dict[tuple[GroupId, HostId], tuple[HostRecord, GroupRecord, list[RolloutRecord]]] = {}
    for name in job.asked:
        found = run.state.find_rollout(name)
        assert found is not None, name
        _, group, rollout = found
        if node is None and run.now - rollout.asked_at <= FORK_REPEAT_S:
            break
        host = None if rollout.node is None else run.state.hosts.get(rollout.node)
        if host is None or not host.is_live or (node is not None and host is not node):
            continue
        asked.setdefault((group.group_id, host.host_id), (host, group, []))[2].append(rollout)
    for host, group, members in asked.values():
        members.sort(key=lambda rollout: rollout.index)
        for rollout in members:
            # Last in the line of those that wait for an answer.
            del job.asked[rollout.rollout_id]
            job.asked[rollout.rollout_id] = None
            rollout.asked_at = run.now
        run.emit(fork_command(group, host, tuple(members)))
