"""Which engine host runs a rollout: the group's own for its shared prefix, else the least loaded.

The hop rises at every placement and never restarts; a rollout is on at most one engine. A rollout of
a host whose fate is open (a restored lease) waits for that host's snapshot or for its loss.
"""

from domain.commands import PlaceRollout
from domain.ids import HostId
from scheduler.core.holdings import take_place
from scheduler.core.records import GroupRecord, HostRecord, HostState, JobRecord, RolloutRecord
from scheduler.core.state import Pass
from scheduler.core.weights import is_current


def place_ready(run: Pass, job: JobRecord) -> None:
    """Place waiting rollouts in rank order; one that finds no engine goes on waiting."""
    if not job.is_running or not job.ready:
        return
    engines = run.state.engines_of(job)
    waiting = [run.state.find_rollout(rollout_id) for rollout_id in job.ready]
    found = [entry for entry in waiting if entry is not None]
    for _, group, rollout in sorted(found, key=lambda entry: (entry[2].rank, entry[2].rollout_id)):
        node = None if group.node is None else run.state.hosts.get(group.node)
        engine = _choose_engine(job, group, rollout, engines)
        if engine is not None and node is not None and node.is_live:
            _place(run, job, (group, rollout), (engine, node))


def wait_for_place(job: JobRecord, rollout: RolloutRecord) -> None:
    """The rollout has its sandbox and no host: it may be placed."""
    if rollout.host is None and rollout.expected_on is None and not rollout.is_unclaimed:
        job.ready[rollout.rollout_id] = None


def _choose_engine(
    job: JobRecord, group: GroupRecord, rollout: RolloutRecord, engines: list[HostRecord]
) -> HostRecord | None:
    fitting = [engine for engine in engines if _may_run(job, group, rollout, engine)]
    for engine in fitting:
        if engine.host_id == group.engine:
            return engine
    return min(fitting, key=lambda engine: (engine.load, engine.host_id), default=None)


def _may_run(
    job: JobRecord, group: GroupRecord, rollout: RolloutRecord, engine: HostRecord
) -> bool:
    if engine.state is not HostState.JOINED:
        return False
    if not group.is_training:
        settled = engine.syncing is None or engine.syncing == engine.version
        return engine.version == group.policy_version and settled
    return is_current(job, engine) and engine.version >= group.policy_version


def _place(
    run: Pass,
    job: JobRecord,
    member: tuple[GroupRecord, RolloutRecord],
    hosts: tuple[HostRecord, HostRecord],
) -> None:
    (group, rollout), (engine, node) = member, hosts
    take_place(run.state, job, rollout, engine.host_id)
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
        )
    )


def placed_on(job: JobRecord, host: HostId) -> list[tuple[GroupRecord, RolloutRecord]]:
    """Open rollouts on this engine host."""
    return [
        (group, rollout)
        for group in job.groups.values()
        for rollout in group.rollouts
        if rollout.is_open and rollout.host == host
    ]
