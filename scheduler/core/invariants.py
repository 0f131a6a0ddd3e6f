"""What must be true after every step (`scheduling.md` section 13, as far as it is built).

A broken sentence raises `InvariantBroken` with the job that it was found in; the shell then
quarantines that job.
"""

from domain.commands import Command, PlaceRollout, SetRanks, SyncEngine
from domain.states import HostKind, JobState
from kv.ranks import class_of as class_of_rank
from scheduler.core import indexes, order, pacing
from scheduler.core.batches import may_all_be_trained
from scheduler.core.gangs import engines_held
from scheduler.core.indexes import InvariantBroken, hold
from scheduler.core.records import GroupPhase, GroupRecord, JobRecord, RolloutRecord, SandboxState
from scheduler.core.state import State

__all__ = ["InvariantBroken", "check"]


def check(state: State, commands: list[Command]) -> None:
    """Raise when any invariant is broken after a step that gave these commands."""
    _check_pool(state)
    _check_hosts(state)
    for job in state.jobs.values():
        _check_gang(job)
        _check_batch(job)
        _check_pacing(job)
        for group in job.groups.values():
            _check_group(state, job, group)
    _check_leases(state, commands)
    indexes.check(state)


def _check_pool(state: State) -> None:
    gangs = [job.gang for job in state.jobs.values() if job.gang is not None]
    room = state.pool.sandboxes - state.pool.grading_reserve
    hold(len(gangs) <= state.pool.trainers, "more gangs than trainers")
    hold(engines_held(state) <= state.pool.engines, "more engines than the pool has")
    hold(sum(g.sandboxes for g in gangs) <= room, "more guaranteed sandboxes than the pool has")
    held = sum(_count_sandboxes(job, restored=False) for job in state.jobs.values())
    hold(held <= room or state.is_overcommitted, "agents hold the grading reserve")


def _count_sandboxes(job: JobRecord, restored: bool) -> int:
    free = (SandboxState.WANTED,) if restored else (SandboxState.WANTED, SandboxState.UNKNOWN)
    return sum(1 for g in job.groups.values() for r in g.rollouts if r.sandbox not in free)


def _check_hosts(state: State) -> None:
    """In use + free = total: each counter equals what the records say."""
    loads = dict.fromkeys(state.hosts, 0)
    held = dict.fromkeys(state.hosts, 0)
    for job in state.jobs.values():
        hold(job.sandboxes == _count_sandboxes(job, restored=True), "sandbox count", job)
        members = [(group, r) for group in job.groups.values() for r in group.rollouts]
        for group, rollout in members:
            if rollout.host is not None:
                hold(rollout.host in loads, f"{rollout.rollout_id} on a lost host", job)
                loads[rollout.host] += 1
                held[rollout.host] += max(rollout.tokens - group.shared_tokens, 0)
            if rollout.node in loads:
                loads[rollout.node] += 1
        for group in job.groups.values():
            for host_id in group.members_on:
                held[host_id] += group.shared_tokens
    for host_id, load in loads.items():
        host = state.hosts[host_id]
        hold(host.load == load, f"load of {host_id} is {load}")
        hold(host.kv_held == held[host_id], f"KV of {host_id} is {held[host_id]}")


def _check_gang(job: JobRecord) -> None:
    is_waiting = job.state in (JobState.QUEUED, JobState.PAUSED)
    hold(not (is_waiting and job.gang is not None), "a waiting job holds a gang", job)
    must_hold = job.state in (JobState.PROVISIONING, JobState.RUNNING)
    hold(not must_hold or job.gang is not None, "a running job holds no gang", job)


def _check_batch(job: JobRecord) -> None:
    batch = job.plan.groups_per_batch
    assigned = {g.group_id: g for g in job.groups.values() if g.phase is GroupPhase.ASSIGNED}
    placed = list(job.positions.values())
    hold(len(placed) == len(set(placed)), "a group is in two positions", job)
    hold(sorted(placed) == sorted(assigned), "positions and assigned groups differ", job)
    hold(all(0 <= position < batch for position in job.positions), "position outside", job)
    for position, group_id in job.positions.items():
        group = assigned[group_id]
        hold(group.position == position, f"{group_id} is in another position", job)
        hold(group.staleness <= job.plan.max_staleness, f"{group_id} is too stale", job)
    hold(not job.is_closing_step or len(placed) == batch, "a step closes with a hole", job)
    hold(may_all_be_trained(job), "more groups are due than positions are left", job)


def _check_pacing(job: JobRecord) -> None:
    groups = job.training_groups()
    unfinished = sum(1 for group in groups if group.is_unfinished)
    hold(len(groups) <= pacing.kept_max(job), "too many groups alive", job)
    hold(unfinished <= pacing.open_max(job), "too many groups unfinished", job)


def _check_group(state: State, job: JobRecord, group: GroupRecord) -> None:
    if group.phase is not GroupPhase.OPEN:
        hold(not group.open_rollouts(), f"{group.group_id} has open rollouts", job)
    for rollout in group.rollouts:
        _check_rollout(state, job, rollout)
        is_marked = job.ranks_are_old or group.group_id in job.roster.unranked
        is_ranked = rollout.is_open and not is_marked
        rank_class = class_of_rank(rollout.rank)
        is_right = not is_ranked or rank_class == order.class_of(job, group)
        hold(is_right, f"{rollout.rollout_id} is ranked outside its class", job)


def _check_rollout(state: State, job: JobRecord, rollout: RolloutRecord) -> None:
    """A rollout is in exactly one place."""
    name = rollout.rollout_id
    is_ready, is_wanting = name in job.ready, name in job.wanting
    if not rollout.is_open or rollout.is_closing:
        holds = rollout.host is not None or rollout.sandbox is not SandboxState.WANTED
        hold(not (holds or is_ready or is_wanting), f"{name} ended and holds something", job)
        return
    if is_ready:
        is_idle = rollout.host is None and rollout.sandbox is SandboxState.READY
        hold(is_idle, f"{name} waits for a place and has one, or has no sandbox", job)
    hold(
        is_wanting == (rollout.sandbox is SandboxState.WANTED),
        f"{name} wants a sandbox and has one, or has none and wants none",
        job,
    )
    is_on_node = rollout.sandbox in (SandboxState.ASKED, SandboxState.READY)
    is_known = rollout.sandbox is SandboxState.UNKNOWN or is_on_node == (rollout.node is not None)
    hold(is_known, f"{name} has a sandbox on no node, or none on one", job)
    host = None if rollout.host is None else state.hosts[rollout.host]
    if host is not None:
        is_ours = host.kind is HostKind.ENGINE and host.attempt_id == job.attempt_id
        hold(is_ours and not is_ready, f"{name} is on a foreign host", job)
        return
    hold(not rollout.is_suspended or is_ready, f"{name} is suspended and does not wait", job)
    is_pending = rollout.expected_on is not None or rollout.is_unclaimed
    is_moving = rollout.sandbox in (SandboxState.ASKED, SandboxState.UNKNOWN)
    is_somewhere = is_ready or is_wanting or is_moving or is_pending
    hold(is_somewhere, f"{name} is nowhere", job)


def _check_leases(state: State, commands: list[Command]) -> None:
    for command in commands:
        if not isinstance(command, PlaceRollout | SetRanks | SyncEngine):
            continue
        host = state.hosts.get(command.host_id)
        is_live = host is None or host.epoch == command.epoch
        hold(is_live, f"a command names epoch {command.epoch} of {command.host_id}")
