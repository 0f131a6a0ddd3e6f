"""Hosts come and go: a joined host is adopted with what it holds, a lost one gives everything up.

A lower epoch never gets here (`refusals.py`). A higher one without a loss before it means that the
loss was not seen: the old epoch is lost first.
"""

from itertools import islice
from typing import Final

from domain.commands import ReleaseSandboxes
from domain.events import HeldRollout, HostJoined
from domain.ids import AttemptId, GroupId, HostId, RolloutId, attempt_of_host
from domain.ids import host_id as host_id_of
from domain.states import End, HostKind
from scheduler.core import failures, forks, grading, lifecycle, order, roster
from scheduler.core.holdings import leave_place, move_to_node, note_tokens, take_place, take_sandbox
from scheduler.core.placement import placed_on, wait_for_place
from scheduler.core.records import (
    GroupRecord,
    HostRecord,
    HostState,
    JobRecord,
    RolloutRecord,
    SandboxState,
)
from scheduler.core.state import Pass

BEREFT_MAX: Final = 32
"""Groups of a lost node that one step folds in; thousands of tries may have ended with it."""


def join(run: Pass, event: HostJoined) -> None:
    """Adopt a host, or resync one that dialled again."""
    known = run.state.hosts.get(event.host_id)
    if known is not None and known.epoch < event.epoch:
        lose(run, event.host_id, known.epoch, "superseded")
        known = None
    finish_loss(run, event.host_id)
    host = known or HostRecord(
        host_id=event.host_id,
        epoch=event.epoch,
        kind=event.kind,
        attempt_id=event.attempt_id,
        state=HostState.JOINED,
    )
    was_replacing = host.state is HostState.REPLACING
    host.state = HostState.REPLACING if was_replacing else HostState.JOINED
    host.slots, host.kv_tokens = event.slots, event.kv_tokens
    host.may_migrate = event.may_migrate
    run.state.hosts[event.host_id] = host
    run.state.note_hosts(event.attempt_id)
    if event.kind is HostKind.NODE:
        run.state.node_epochs[host.host_id] = host.epoch
        if event.room is not None:
            run.state.rooms.report(host.host_id, event.room)
        _join_node(run, host, event.held)
        return
    job = run.state.job_of(event.attempt_id)
    assert job is not None, event.host_id
    job.epochs[host.host_id] = host.epoch
    run.touch(job)
    run.grants_wanted = True
    if event.kind is HostKind.ENGINE:
        host.version, host.syncing = max(event.policy_version, -1), None
        run.state.note_hosts(job.attempt_id)
        _join_engine(run, job, host, event.held)


def lose(run: Pass, host_id: HostId, epoch: int, cause: str) -> None:
    """Nothing of this epoch counts any more; a host that never joined counts as a failed start."""
    host = run.state.hosts.pop(host_id, None)
    job = run.state.job_of(attempt_of_host(host_id))
    if job is None:
        run.state.note_hosts(None)
        run.state.lost_nodes[host_id] = epoch
        _lose_node(run, host_id)
        return
    run.state.note_hosts(job.attempt_id)
    job.lost_epochs[host_id] = job.epochs[host_id] = epoch
    run.touch(job)
    kind = HostKind.TRAINER if host_id == trainer_id(job.attempt_id) else HostKind.ENGINE
    if kind is HostKind.TRAINER:
        job.trainer_losses += 1
    else:
        job.engine_losses += 1
        if host is not None:
            _lose_engine(run, job, host_id)
    losses = max(job.trainer_losses, job.engine_losses)
    if losses > lifecycle.HOST_LOSSES_MAX:
        cause = f"{kind.value} host lost {losses} times without progress: {cause}"
        lifecycle.fail_job(run, job, "host_lost", kind.value, cause)


def trainer_id(attempt: AttemptId) -> HostId:
    """Id of the attempt's trainer host."""
    return host_id_of(attempt, HostKind.TRAINER.value)


def _join_node(run: Pass, host: HostRecord, held: tuple[HeldRollout, ...]) -> None:
    """Tries that the node holds are ready; those that it does not hold are asked for again."""
    holds = {(entry.rollout_id, entry.try_) for entry in held if not entry.is_starting}
    surplus = []
    for entry in held:
        found = run.state.find_rollout(entry.rollout_id)
        if found is not None and not _adopt_sandbox(run, found, host, entry):
            surplus.append((entry.rollout_id, entry.try_))
    if surplus:
        run.emit(ReleaseSandboxes(host.host_id, host.epoch, tuple(surplus)))
    for job in run.state.jobs.values():
        _ask_for_missing(run, job, host, holds)
        forks.repeat_forks(run, job, host)
        grading.repeat_grades(run, job, host)
        run.touch(job)
    run.grants_wanted = True
    settle_fates(run)


def _adopt_sandbox(
    run: Pass,
    found: tuple[JobRecord, GroupRecord, RolloutRecord],
    host: HostRecord,
    entry: HeldRollout,
) -> bool:
    """Take it up where nobody knows of a sandbox of this try; False when another node was asked for it."""
    job, group, rollout = found
    is_wanted = rollout.sandbox is SandboxState.WANTED and not job.is_drained
    if not rollout.is_open or rollout.is_closing or rollout.try_ != entry.try_:
        return True
    if group.node is None:
        move_to_node(run.state, group, host.host_id)
    is_lost_sight_of = is_wanted or rollout.sandbox is SandboxState.UNKNOWN
    if not is_lost_sight_of and rollout.node != host.host_id:
        return rollout.node is None
    if not entry.is_starting:
        take_sandbox(run.state, job, (group, rollout), SandboxState.READY, host.host_id)
        wait_for_place(job, rollout)
    elif is_lost_sight_of:
        take_sandbox(run.state, job, (group, rollout), SandboxState.ASKED, host.host_id)
        rollout.asked_at = run.now
    return True


def _ask_for_missing(
    run: Pass, job: JobRecord, host: HostRecord, holds: set[tuple[RolloutId, int]]
) -> None:
    """A ready try that the node lacks and no engine runs: the fork is repeated for the same try.

    One that runs is left alone: its engine meets the loss itself, or it just ended by itself.
    """
    for rollout_id in list(job.ready):
        found = run.state.find_rollout(rollout_id)
        assert found is not None, rollout_id
        _, group, rollout = found
        is_held = (rollout_id, rollout.try_) in holds
        if rollout.node == host.host_id and not is_held:
            take_sandbox(run.state, job, (group, rollout), SandboxState.ASKED, host.host_id)
            del job.ready[rollout_id]


def _join_engine(
    run: Pass, job: JobRecord, host: HostRecord, held: tuple[HeldRollout, ...]
) -> None:
    """Rollouts that it holds at the right try and hop go on; those that it lost are placed again."""
    for entry in held:
        found = run.state.find_rollout(entry.rollout_id)
        if found is None:
            continue
        _, group, rollout = found
        is_same = (rollout.try_, rollout.hop) == (entry.try_, entry.hop)
        if is_same and rollout.is_open and not rollout.is_closing and _may_be_on(rollout, host):
            take_place(run.state, job, group, rollout, host.host_id)
            group.engine = group.engine or host.host_id
            rollout.turn = max(rollout.turn, entry.turn)
            note_tokens(run.state, group, rollout, max(rollout.tokens, entry.tokens), 0)
            if rollout.oldest_version is None:
                rollout.oldest_version = entry.oldest_version
            roster.note_versions(job, group)
            order.note_restart(run, job, group)
            job.batch_is_old = True
    kept = {(entry.rollout_id, entry.try_, entry.hop) for entry in held}
    for group, rollout in placed_on(job, host.host_id):
        if (rollout.rollout_id, rollout.try_, rollout.hop) not in kept:
            _take_off(run, job, group, rollout)
    settle_fates(run)


def _may_be_on(rollout: RolloutRecord, host: HostRecord) -> bool:
    return (
        rollout.host == host.host_id
        or rollout.expected_on == host.host_id
        or (rollout.is_unclaimed and rollout.host is None)
    )


def _take_off(run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> None:
    """The rollout's engine does not hold it: it waits for a place under the same try."""
    leave_place(run.state, group, rollout)
    rollout.expected_on = None
    if rollout.sandbox is SandboxState.READY:
        wait_for_place(job, rollout)


def _lose_node(run: Pass, node: HostId) -> None:
    """Its sandboxes died with it: open tries end, gradings are asked of another agent.

    The death is one failure of the job, however many tries it ended: it says nothing of them.
    """
    finish_loss(run, node)
    run.state.rooms.leave(node)
    for job in list(run.state.jobs.values()):
        hit = [g for g in job.groups.values() if g.node == node or node in g.held_on]
        for group in hit:
            lost = run.state.bereft.get(group.group_id, ())
            run.state.bereft[group.group_id] = (*lost, node)
        if any(True for group in hit for _ in failures.holding_on(group, node)):
            failures.count_try(run, job, f"{End.SANDBOX_LOST}: node_agent_lost")
        grading.fail_grades_on(run, job, node)
        run.touch(job)
    run.grants_wanted = True
    settle_fates(run)


def go_on_with_losses(run: Pass) -> None:
    """End the tries of lost nodes, of as many groups as a step may take."""
    for group_id in list(islice(run.state.bereft, BEREFT_MAX)):
        _bereave(run, group_id)


def finish_loss(run: Pass, node: HostId) -> None:
    """End all tries of this lost node: its id stands for another process from now on."""
    for group_id in [group_id for group_id, lost in run.state.bereft.items() if node in lost]:
        _bereave(run, group_id)


def _bereave(run: Pass, group_id: GroupId) -> None:
    nodes = run.state.bereft.pop(group_id)
    found = run.state.find_group(group_id)
    if found is None:
        return
    job, group = found
    for node in nodes:
        for rollout in failures.holding_on(group, node):
            failures.lose_try(run, job, group, rollout, (End.SANDBOX_LOST, "node_agent_lost"))
        if group.node == node:
            move_to_node(run.state, group, next(iter(group.held_on), None))
    run.touch(job)


def _lose_engine(run: Pass, job: JobRecord, engine: HostId) -> None:
    """Its rollouts go on elsewhere; one that outlived too many engines is the suspect itself."""
    ended = 0
    for group, rollout in placed_on(job, engine):
        rollout.engine_losses += 1
        if rollout.engine_losses >= failures.ENGINE_LOSSES_PER_TRY:
            failures.lose_try(run, job, group, rollout, (End.ENGINE_LOST, "engine_host_lost"))
            ended += 1
        else:
            _take_off(run, job, group, rollout)
    if ended:
        failures.count_try(run, job, f"{End.ENGINE_LOST}: engine_host_lost")
    settle_fates(run)


def settle_fates(run: Pass) -> None:
    """Decide what was left open at a leader's start once the hosts it depends on are known."""
    nodes_known = not any(True for _ in run.state.expected_hosts(HostKind.NODE, None))
    for job in run.state.jobs.values():
        if job.unsettled:
            _settle_job(run, job, nodes_known)


def _settle_job(run: Pass, job: JobRecord, nodes_known: bool) -> None:
    engines = {h.host_id for h in run.state.expected_hosts(HostKind.ENGINE, job.attempt_id)}
    for rollout_id in list(job.unsettled):
        found = run.state.find_rollout(rollout_id)
        if found is None or not found[2].is_open:
            del job.unsettled[rollout_id]
            continue
        _, group, rollout = found
        if rollout.is_unclaimed and not engines:
            rollout.is_unclaimed = False
        if rollout.expected_on is not None and rollout.expected_on not in engines:
            rollout.expected_on = None
        if rollout.expected_on is not None or rollout.is_unclaimed:
            continue
        if rollout.sandbox is SandboxState.UNKNOWN and rollout.host is None and nodes_known:
            failures.want_again(run, job, group, rollout)
        if rollout.sandbox is not SandboxState.UNKNOWN:
            del job.unsettled[rollout_id]
            if rollout.sandbox is SandboxState.READY:
                wait_for_place(job, rollout)
    run.touch(job)
