"""Rollouts move between engines with their prefix, in tool gaps (`scheduling.md` section 6).

Pressure of an engine is the context of the rollouts placed on it over its device tier. A rollout moves
from above one threshold to below another that leaves room for it, so that nothing swings; moves of one
pass are bounded because each is decided for the rollout whose gap just began, and at most one is.
"""

from enum import Enum
from typing import Final

from domain.plan import Mechanism
from scheduler.core import placement
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.state import Pass

PRESSURE_FROM: Final = 0.95
"""Above it turns wait for room; below it a move gains nothing."""

PRESSURE_TO: Final = 0.80
"""With the moved context: the target must not become one that rollouts leave."""


def pressure(engine: HostRecord) -> float:
    """Share of the device tier that the contexts placed on an engine would take; 0 when unknown."""
    return engine.kv_held / engine.kv_tokens if engine.kv_tokens else 0.0


class Move(Enum):
    """What came of looking at a rollout whose gap began."""

    MOVED = "moved"
    NOT_NEEDED = "not_needed"
    NO_ROOM = "no_room"


def consider(run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> Move:
    """Move the rollout whose gap began, if that pays."""
    if not job.plan.scheduling.has(Mechanism.MIGRATION) or rollout.host is None:
        return Move.NOT_NEEDED
    source = run.state.hosts[rollout.host]
    if not source.may_migrate or pressure(source) <= PRESSURE_FROM:
        return Move.NOT_NEEDED
    target = _target(run, job, group, rollout)
    if target is None:
        return Move.NO_ROOM
    is_moved = placement.migrate(run, job, (group, rollout), target)
    return Move.MOVED if is_moved else Move.NOT_NEEDED


def _target(
    run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord
) -> HostRecord | None:
    """The engine with the least pressure that has room; one that holds the group's prefix is better."""
    room = [
        engine
        for engine in run.state.engines_of(job)
        if engine.may_migrate
        and engine.kv_tokens
        and engine.host_id != rollout.host
        and engine.kv_held + rollout.tokens < PRESSURE_TO * engine.kv_tokens
        and placement.may_run(job, group, engine)
    ]
    return min(
        room,
        key=lambda e: (e.host_id not in group.members_on, pressure(e), e.host_id),
        default=None,
    )
