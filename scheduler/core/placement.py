"""Which engine host runs a rollout: the group's own for its shared prefix, else the least loaded.

The hop rises at every placement and never restarts; a rollout is on at most one engine. A rollout of
a host whose fate is open (a restored lease) waits for that host's snapshot or for its loss.
"""

from domain.commands import PlaceRollout, SuspendRollout
from domain.ids import HostId
from scheduler.core.holdings import leave_place, take_place
from scheduler.core.records import GroupRecord, HostRecord, HostState, JobRecord, RolloutRecord
from scheduler.core.state import Pass
from scheduler.core.weights import is_current


def place_ready(run: Pass, job: JobRecord) -> None:
    """Place waiting rollouts in rank order; one that finds no engine goes on waiting."""
    if not job.is_running or not job.ready:
        return
    if not run.state.engines_of(job):
        return
    waiting = [run.state.find_rollout(rollout_id) for rollout_id in job.ready]
    found = [entry for entry in waiting if entry is not None and not entry[2].is_suspended]
    if len(found) > 1:
        found.sort(key=lambda entry: (entry[2].rank, entry[2].rollout_id))
    for _, group, rollout in found:
        node = None if rollout.node is None else run.state.hosts.get(rollout.node)
        engine = _choose_engine(run, job, (group, rollout))
        if engine is not None and node is not None and node.is_live:
            _place(run, job, (group, rollout), (engine, node))


def wait_for_place(job: JobRecord, rollout: RolloutRecord) -> None:
    """The rollout has its sandbox and no host: it may be placed."""
    if rollout.host is None and rollout.expected_on is None and not rollout.is_unclaimed:
        job.ready[rollout.rollout_id] = None


def suspend(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord, keep_kv: bool = False
) -> None:
    """Take a placed rollout off its engine between turns; it waits until the strategy resumes it.

    Its hop stays: what the old host still sends of it is refused because it has no place.
    """
    assert rollout.host is not None, rollout.rollout_id
    engine = run.state.hosts[rollout.host]
    run.ranks.get(engine.host_id, {}).pop(rollout.rollout_id, None)
    leave_place(run.state, group, rollout)
    rollout.is_suspended = True
    rollout.kv_from = engine.host_id if keep_kv else None
    job.ready[rollout.rollout_id] = None
    run.emit(
        SuspendRollout(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            host_id=engine.host_id,
            epoch=engine.epoch,
            keep_kv=keep_kv,
        )
    )


def resume(run: Pass, job: JobRecord, rollout: RolloutRecord) -> None:
    """Let a suspended rollout be placed again, on whichever engine the strategy then chooses."""
    rollout.is_suspended = False
    run.touch(job)


def migrate(
    run: Pass, job: JobRecord, member: tuple[GroupRecord, RolloutRecord], target: HostRecord
) -> bool:
    """Move a rollout between turns to another engine, with its pages; whether it moved."""
    group, rollout = member
    node = None if rollout.node is None else run.state.hosts.get(rollout.node)
    if node is None or not node.is_live or not may_run(job, group, target):
        return False
    suspend(run, job, group, rollout, keep_kv=True)
    _place(run, job, member, (target, node))
    return True


def _choose_engine(
    run: Pass,
    job: JobRecord,
    member: tuple[GroupRecord, RolloutRecord],
) -> HostRecord | None:
    fitting = _fitting(run, job, member[0])
    return job.rules.choose_engine(run, job, member, fitting) if fitting else None


def _fitting(run: Pass, job: JobRecord, group: GroupRecord) -> list[HostRecord]:
    """Engines that may run this group, by id; of training groups they are the same for one version."""
    if not group.is_training:
        return [e for e in run.state.engines_of(job) if may_run(job, group, e)]
    known = job.fitting.get(group.policy_version)
    if known is None:
        version = group.policy_version
        known = [e for e in run.state.engines_of(job) if may_train(job, version, e)]
        job.fitting[group.policy_version] = known
    return known


def may_run(job: JobRecord, group: GroupRecord, engine: HostRecord) -> bool:
    """Whether rollouts of this group may be placed on this engine now."""
    if engine.state is not HostState.JOINED:
        return False
    if not group.is_training:
        settled = engine.syncing is None or engine.syncing == engine.version
        return engine.version == group.policy_version and settled
    return may_train(job, group.policy_version, engine)


def may_train(job: JobRecord, version: int, engine: HostRecord) -> bool:
    """Whether a live engine may run training rollouts sampled with at least this version."""
    return is_current(job, engine) and engine.version >= version


def _place(
    run: Pass,
    job: JobRecord,
    member: tuple[GroupRecord, RolloutRecord],
    hosts: tuple[HostRecord, HostRecord],
) -> None:
    (group, rollout), (engine, node) = member, hosts
    kv_from = rollout.kv_from
    take_place(run.state, job, group, rollout, engine.host_id)
    group.engine = engine.host_id
    rollout.hop += 1
    rollout.progress_at = run.now
    run.ranks.get(engine.host_id, {}).pop(rollout.rollout_id, None)
    run.emit(
        PlaceRollout(
            rollout_id=rollout.rollout_id,
            try_=rollout.try_,
            hop=rollout.hop,
            host_id=engine.host_id,
            epoch=engine.epoch,
            node=node.host_id,
            node_epoch=node.epoch,
            rank=rollout.rank,
            kv_from=kv_from,
        )
    )


def placed_on(job: JobRecord, host: HostId) -> list[tuple[GroupRecord, RolloutRecord]]:
    """Open rollouts on this engine host."""
    return [
        (group, rollout)
        for group in job.groups.values()
        if host in group.members_on
        for rollout in group.rollouts
        if rollout.is_open and rollout.host == host
    ]
