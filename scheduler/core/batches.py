"""Which complete group takes which position of the step being filled.

Complete groups are assigned by last valid step, then by the job's order. Positions are reserved: with
s the step being filled and cap(d) = B x (d - s + 1) - assigned the positions left up to step d, the
number of unassigned live groups whose last valid step is at most d never exceeds cap(d). For d = s
this is the rule that a group valid for a later step takes a position only while free positions exceed
the promoted groups; the other d keep the promise of the steps after this one. Staleness is frozen here.
"""

from collections import Counter
from typing import Final

from domain.commands import AssignGroup, CloseStep, ReplaceMember
from domain.states import DropReason
from scheduler.core import order, roster
from scheduler.core.failures import drop_group
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord
from scheduler.core.state import Pass, State

ASSIGNED_MAX: Final = 256
"""Groups that one step assigns; the next one goes on, so that a large batch delays no other event."""


def fill(run: Pass, job: JobRecord) -> None:
    """Assign what may be assigned to the step being filled; the B-th assignment closes it.

    Only while the job runs: the trainer finds members by query, so a step that became full while the
    job pauses would be made after the pause's checkpoint, by a trainer that is being released.
    """
    if not job.batch_is_old or job.committed >= job.plan.max_steps or job.policy is None:
        return
    if not job.is_running:
        return
    drop_overdue(run, job)
    job.batch_is_old = False
    batch, waiting = job.plan.groups_per_batch, job.roster.waiting
    assigned = passed = 0
    while len(job.positions) < batch and passed < len(waiting):
        if assigned == ASSIGNED_MAX:
            job.batch_is_old = True
            run.leave(job)
            break
        group = job.groups[waiting[passed][2]]
        if not job.rules.may_take(job, group):
            passed += 1
            continue
        # What is due later has no more slack than what is due earlier, so the first refusal is the last.
        if job.rules.paces and not _has_slack(job, group.last_valid):
            break
        _assign(run, job, group)
        # What a strategy refused may be due now that this one has its position.
        assigned, passed = assigned + 1, 0
    close_if_full(run, job)


def close_if_full(run: Pass, job: JobRecord) -> None:
    """Tell the trainer once that all positions are assigned; a pausing job begins no new update."""
    if not job.is_running or job.is_closing_step:
        return
    if len(job.positions) == job.plan.groups_per_batch:
        job.is_closing_step = True
        run.emit(CloseStep(attempt_id=job.attempt_id, step=job.filling))


def drop_overdue(run: Pass, job: JobRecord) -> None:
    """Drop groups that no later step may train: complete ones as stale, others as unsalvageable."""
    due = job.roster.due
    # A token that was not reported yet may be younger than what the index assumes of it.
    suspects = [group for step in sorted(due) if step < job.filling for group in due[step].values()]
    for group in suspects:
        oldest = group.oldest_known_version()
        if oldest is None or oldest + 1 + job.plan.max_staleness >= job.filling:
            continue
        is_complete = group.phase is GroupPhase.COMPLETE
        reason = DropReason.STALE if is_complete else DropReason.UNSALVAGEABLE
        drop_group(run, job, group, reason, "past its last valid step")


def replace_member(run: Pass, job: JobRecord, group: GroupRecord, cause: str) -> None:
    """Free the position of a group whose payload cannot be read; another group fills it."""
    _free_position(run, job, group, DropReason.PAYLOAD_LOST)
    job.is_closing_step = False
    job.returned.append(group.ordinal)
    drop_group(run, job, group, DropReason.PAYLOAD_LOST, cause)


def give_up_step(run: Pass, job: JobRecord) -> None:
    """The job ends before the step being filled: its groups leave their positions."""
    for group in [g for g in job.training_groups() if g.phase is GroupPhase.ASSIGNED]:
        _free_position(run, job, group, DropReason.CANCELLED)
        drop_group(run, job, group, DropReason.CANCELLED, "the job ended before this step")


def _free_position(run: Pass, job: JobRecord, group: GroupRecord, reason: DropReason) -> None:
    assert group.position is not None, group.group_id
    run.emit(
        ReplaceMember(
            attempt_id=job.attempt_id,
            step=job.filling,
            position=group.position,
            group_id=group.group_id,
            reason=reason,
        )
    )
    roster.free_position(job, group.position)


def consume(state: State, job: JobRecord) -> list[GroupRecord]:
    """The step being filled is durable: its groups leave the state, the next step begins."""
    taken = [job.groups[job.positions[position]] for position in sorted(job.positions)]
    for group in taken:
        roster.remove(state, job, group)
    job.positions.clear()
    job.free_from = 0
    job.is_closing_step = False
    job.committed += 1
    state.note_hosts(job.attempt_id)
    # Groups whose last valid step is the one that begins are promoted.
    job.roster.unranked.update(dict.fromkeys(job.roster.due.get(job.filling, ())))
    if order.is_kept(job):
        order.age(job)
    return taken


def may_all_be_trained(job: JobRecord) -> bool:
    """Whether positions are left for every live group up to its last valid step.

    A restored group whose tokens are not reported yet is estimated too old and may seem too many.
    """
    if not job.rules.paces:
        return True
    if any(group.is_estimated and group.is_unfinished for group in job.groups.values()):
        return True
    due = 0
    deadlines: Counter[int] = Counter()
    for group in job.training_groups():
        if group.phase is not GroupPhase.ASSIGNED:
            deadlines[job.last_valid_step(group)] += 1
    for step in sorted(deadlines):
        due += deadlines[step]
        left = job.plan.groups_per_batch * (step - job.filling + 1) - len(job.positions)
        if step >= job.filling and due > left:
            return False
    return True


def _has_slack(job: JobRecord, deadline: int) -> bool:
    """Whether a group with this last valid step may take a position from those that are due earlier."""
    batch, groups = job.plan.groups_per_batch, job.roster.due
    due = 0
    for step in sorted(groups):
        if step >= deadline:
            return True
        due += len(groups[step])
        if due >= batch * (step - job.filling + 1) - len(job.positions):
            return False
    return True


def _assign(run: Pass, job: JobRecord, group: GroupRecord) -> None:
    staleness = max(job.filling - 1 - group.oldest_possible_version(), 0)
    assert staleness <= job.plan.max_staleness, f"{group.group_id} would enter with {staleness}"
    roster.move(run.state, job, group, GroupPhase.ASSIGNED)
    position, group.staleness = roster.fill_position(job, group), staleness
    run.emit(
        AssignGroup(
            attempt_id=job.attempt_id,
            step=job.filling,
            position=position,
            group_id=group.group_id,
            staleness=staleness,
        )
    )
