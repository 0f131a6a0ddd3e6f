"""The only functions that add groups, change their phase or last valid step, and remove them.

Every index over a job's groups (`records.Roster`, `State.members`) changes here, so that no rule has
to look at all groups to find those that it is about.

    open -> closed -> grading -> complete -> assigned -> consumed
                 <---'     (a grader failed)
"""

from bisect import bisect_left, insort

from domain.ids import GroupId
from scheduler.core import order
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.state import State


def admit(state: State, job: JobRecord, group: GroupRecord) -> None:
    """A group begins to live, new or restored, in the phase that it is in."""
    job.groups[group.group_id] = group
    roster = job.roster
    roster.unranked[group.group_id] = None
    if group.phase is GroupPhase.OPEN:
        for rollout in group.rollouts:
            state.members[rollout.rollout_id] = (job, group, rollout)
    if not group.is_training:
        roster.evaluating[group.group_id] = group
        _enter(job, group)
        return
    roster.training += 1
    group.last_valid = job.last_valid_step(group)
    _enter(job, group)
    if group.is_unfinished:
        roster.unfinished += 1
        roster.young.setdefault(group.opened_at_step, {})[group.group_id] = group
        order.enlist(job, group)


def move(state: State, job: JobRecord, group: GroupRecord, phase: GroupPhase) -> None:
    """The group stands elsewhere from now on."""
    was_unfinished = group.is_unfinished
    if group.phase is GroupPhase.OPEN:
        _hide_members(state, group)
    _leave(job, group)
    group.phase = phase
    _enter(job, group)
    if group.is_training and was_unfinished and not group.is_unfinished:
        _finish(job, group)


def remove(state: State, job: JobRecord, group: GroupRecord) -> None:
    """The group was consumed, evaluated or dropped."""
    del job.groups[group.group_id]
    job.roster.unranked.pop(group.group_id, None)
    if group.phase is GroupPhase.OPEN:
        _hide_members(state, group)
    state.bereft.pop(group.group_id, None)
    _leave(job, group)
    if not group.is_training:
        del job.roster.evaluating[group.group_id]
        return
    job.roster.training -= 1
    if group.is_unfinished:
        _finish(job, group)


def note_versions(job: JobRecord, group: GroupRecord) -> bool:
    """The version of a member's oldest token, or which members count, changed; whether it matters."""
    last_valid = job.last_valid_step(group)
    if not group.is_training or last_valid == group.last_valid:
        return False
    _leave(job, group)
    group.last_valid = last_valid
    _enter(job, group)
    job.roster.unranked[group.group_id] = None
    job.batch_is_old = True
    return True


def fill_position(job: JobRecord, group: GroupRecord) -> int:
    """The lowest free position of the step being filled is the group's."""
    position = job.free_from
    while position in job.positions:
        position += 1
    job.free_from = position + 1
    job.positions[position] = group.group_id
    group.position = position
    return position


def free_position(job: JobRecord, position: int) -> None:
    """Nobody is in this position any more."""
    del job.positions[position]
    job.free_from = min(job.free_from, position)


def _finish(job: JobRecord, group: GroupRecord) -> None:
    """A training group is unfinished no more."""
    job.roster.unfinished -= 1
    _discard(job.roster.young, group.opened_at_step, group.group_id)
    order.delist(job, group)


def _hide_members(state: State, group: GroupRecord) -> None:
    for rollout in group.rollouts:
        state.members.pop(rollout.rollout_id, None)


def _enter(job: JobRecord, group: GroupRecord) -> None:
    roster = job.roster
    if group.phase is GroupPhase.CLOSED:
        roster.closed[group.group_id] = group
    elif group.phase is GroupPhase.GRADING:
        roster.grading[group.group_id] = group
    if not group.is_training or group.phase is GroupPhase.ASSIGNED:
        return
    roster.due.setdefault(group.last_valid, {})[group.group_id] = group
    if group.phase is GroupPhase.COMPLETE:
        last_valid = group.last_valid if job.rules.paces else 0
        group.place = (last_valid, job.rules.complete_key(job, group), group.group_id)
        insort(roster.waiting, group.place)


def _leave(job: JobRecord, group: GroupRecord) -> None:
    roster = job.roster
    roster.closed.pop(group.group_id, None)
    roster.grading.pop(group.group_id, None)
    if group.place is not None:
        at = bisect_left(roster.waiting, group.place)
        assert roster.waiting[at] == group.place, group.group_id
        del roster.waiting[at]
        group.place = None
    if group.is_training and group.phase is not GroupPhase.ASSIGNED:
        _discard(roster.due, group.last_valid, group.group_id)


def _discard(buckets: dict[int, dict[GroupId, GroupRecord]], key: int, group: GroupId) -> None:
    bucket = buckets.get(key)
    if bucket is not None:
        bucket.pop(group, None)
        if not bucket:
            del buckets[key]
