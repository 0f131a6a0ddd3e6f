"""Every index and counter, derived anew from the records and compared; part of the invariants.

An index that drifts from the records decides wrongly without a sound, so each one is named here.
"""

from collections import Counter

from domain.ids import GroupId, JobId, RolloutId
from scheduler.core import order, placement
from scheduler.core.records import GroupPhase, JobRecord, SandboxState
from scheduler.core.state import State


class InvariantBroken(AssertionError):
    """An invariant does not hold; `job_id` is None when it concerns the whole pool."""

    def __init__(self, sentence: str, job_id: JobId | None = None) -> None:
        super().__init__(sentence if job_id is None else f"{job_id}: {sentence}")
        self.job_id = job_id


def hold(is_true: bool, sentence: str, job: JobRecord | None = None) -> None:
    """Raise unless it is true."""
    if not is_true:
        raise InvariantBroken(sentence, None if job is None else job.plan.job_id)


def check(state: State) -> None:
    """Raise when an index or a counter says otherwise than the records."""
    members: dict[RolloutId, GroupId] = {}
    for job in state.jobs.values():
        for group in job.groups.values():
            if group.phase is GroupPhase.OPEN:
                members.update((rollout.rollout_id, group.group_id) for rollout in group.rollouts)
        _check_phases(job)
        _check_waiting(job)
        _check_critical(state, job)
        _check_hosts(state, job)
    known = {name: group.group_id for name, (_, group, _) in state.members.items()}
    hold(known == members, "index of members differs from the open groups")
    parts = Counter(
        rollout.part
        for job in state.jobs.values()
        for group in job.groups.values()
        for rollout in group.rollouts
    )
    rooms = state.rooms.holding()
    hold(all(parts[name] == held for name, held in rooms.items()), "rooms held on nodes")
    held = sum(job.sandboxes for job in state.jobs.values())
    hold(state.sandboxes == held, f"sandboxes of all jobs are {held}")
    nodes = state.live_nodes
    state.live_nodes = None
    hold(nodes is None or nodes == state.nodes(), "index of nodes")


def _check_phases(job: JobRecord) -> None:
    roster, training = job.roster, job.training_groups()
    unfinished = [group for group in training if group.is_unfinished]
    hold(roster.training == len(training), "count of training groups", job)
    hold(roster.unfinished == len(unfinished), "count of unfinished groups", job)
    by_phase = (
        (roster.closed, GroupPhase.CLOSED, "closed"),
        (roster.grading, GroupPhase.GRADING, "grading"),
    )
    for index, phase, name in by_phase:
        meant = [g.group_id for g in job.groups.values() if g.phase is phase]
        hold(sorted(index) == sorted(meant), f"index of {name} groups", job)
    evaluating = [g.group_id for g in job.groups.values() if not g.is_training]
    hold(sorted(roster.evaluating) == sorted(evaluating), "index of evaluation groups", job)
    for group in training:
        is_right = group.last_valid == job.last_valid_step(group)
        hold(is_right, f"last valid step of {group.group_id}", job)
    due = [group for group in training if group.phase is not GroupPhase.ASSIGNED]
    known = {group_id: step for step, groups in roster.due.items() for group_id in groups}
    hold(known == {g.group_id: g.last_valid for g in due}, "index of due groups", job)
    hold(all(roster.due.values()), "an empty bucket of due groups", job)
    young = [group_id for groups in roster.young.values() for group_id in groups]
    meant = [group.group_id for group in unfinished if not group.is_aged]
    hold(sorted(young) == sorted(meant), "index of young groups", job)
    for group in job.groups.values():
        held_on = Counter(one.node for one in group.rollouts if one.node is not None)
        hold(group.held_on == held_on, f"nodes of {group.group_id}", job)
    asked = [
        rollout.rollout_id
        for group in job.groups.values()
        for rollout in group.rollouts
        if rollout.sandbox is SandboxState.ASKED
    ]
    hold(sorted(job.asked) == sorted(asked), "index of asked forks", job)


def _check_waiting(job: JobRecord) -> None:
    waiting = job.roster.waiting
    meant = [g.place for g in job.training_groups() if g.phase is GroupPhase.COMPLETE]
    known = [place for place in meant if place is not None]
    hold(len(known) == len(meant) and waiting == sorted(known), "index of complete groups", job)
    is_low = all(position in job.positions for position in range(job.free_from))
    hold(is_low, "a position below the first free one is free", job)


def _check_critical(state: State, job: JobRecord) -> None:
    roster = job.roster
    unfinished = [group for group in job.training_groups() if group.is_unfinished]
    if not order.is_kept(job) or job.ranks_are_old:
        return
    for entries, is_chosen in ((roster.critical, True), (roster.normal, False)):
        known = [g.entry for g in unfinished if g.entry and g.is_chosen is is_chosen]
        hold(entries == sorted(known), "index of the order", job)
    hold(len(roster.critical) + len(roster.normal) == len(unfinished), "groups of the order", job)
    for group in unfinished:
        is_right = group.is_critical == (group.is_chosen or group.is_aged)
        hold(
            is_right and group.entry == order.key_of(job, group), f"{group.group_id} in order", job
        )
    if job.plan.job_id in state.backlog:
        return
    wanted = min(order.need(job), len(unfinished))
    hold(len(roster.critical) == wanted, f"{wanted} critical groups are needed", job)
    is_sorted = not (roster.critical and roster.normal) or roster.critical[-1] < roster.normal[0]
    hold(is_sorted, "a normal group is before a critical one", job)


def _check_hosts(state: State, job: JobRecord) -> None:
    engines, newest, fitting = job.engines, job.newest_version, dict(job.fitting)
    if engines is not None:
        job.engines = None
        hold(engines == state.engines_of(job), "index of engines", job)
        hold(newest == job.newest_version, "newest version of the engines", job)
    for version, fits in fitting.items():
        meant = [e for e in state.engines_of(job) if placement.may_train(job, version, e)]
        hold(fits == meant, f"index of engines for version {version}", job)
