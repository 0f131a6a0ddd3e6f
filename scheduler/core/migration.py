"""Rollouts move between engines with their prefix, in tool gaps (`scheduling.md` section 6, ADR 14).

Pressure of an engine is the context of the rollouts placed on it over its device tier. A rollout moves
from a fuller engine to one that stays clearly emptier even with it, and below a threshold: where turns
wait for room that is more room; elsewhere a decode step reads every context of its engine, so that the
fullest engine's rollouts are the slowest, and the last of a batch wait for them. Nothing swings: after
a move the target is still the emptier of the two. Moves of one pass are bounded because each is decided
for the rollout whose gap just began, and at most one is; a look is bounded because it is at so many
engines.
"""

from enum import Enum
from typing import Final

from domain.plan import Mechanism
from scheduler.core import placement
from scheduler.core.records import GroupRecord, HostRecord, JobRecord, RolloutRecord
from scheduler.core.state import Pass

PRESSURE_FROM: Final = 0.95
"""Above it turns wait for room: a rollout that finds none elsewhere says so."""

PRESSURE_TO: Final = 0.80
"""With the moved context: the target must not become one where turns wait."""

LEVEL_GAP: Final = 0.05
"""By which an engine must be fuller than the target will be; below it a move gains less than it costs.

Over five seeds of the regime `low` 0.05 and 0.1 take 2 % off a step, 0 and 0.3 take 1 %."""

LOOKED_AT: Final = 8
"""Engines of a job among which a target is sought, others for each turn: with so many the emptiest of
them is nearly the emptiest of all, and one gap costs no more in a job of 512 engines."""


def pressure(engine: HostRecord) -> float:
    """Share of the device tier that the contexts placed on an engine would take; 0 when unknown."""
    return engine.kv_held / engine.kv_tokens if engine.kv_tokens else 0.0


class Move(Enum):
    """What came of looking at a rollout whose gap began."""

    MOVED = "moved"
    NOT_NEEDED = "not_needed"
    NO_ROOM = "no_room"
    """Its engine is full, and no other one of the job has room."""


def consider(run: Pass, job: JobRecord, group: GroupRecord, rollout: RolloutRecord) -> Move:
    """Move the rollout whose gap began, if that pays."""
    if not job.plan.scheduling.has(Mechanism.MIGRATION) or rollout.host is None:
        return Move.NOT_NEEDED
    source = run.state.hosts[rollout.host]
    if not source.may_migrate:
        return Move.NOT_NEEDED
    engines = run.state.engines_of(job)
    room = _with_room(_looked_at(engines, group, rollout), rollout)
    below = pressure(source) - LEVEL_GAP
    if not any(_pressure_with(engine, rollout) < below for engine in room):
        is_full = not room and len(engines) <= LOOKED_AT and pressure(source) > PRESSURE_FROM
        return Move.NO_ROOM if is_full else Move.NOT_NEEDED
    target = _target(job, group, room)
    if target is None or _pressure_with(target, rollout) >= below:
        return Move.NOT_NEEDED
    is_moved = placement.migrate(run, job, (group, rollout), target)
    return Move.MOVED if is_moved else Move.NOT_NEEDED


def _pressure_with(engine: HostRecord, rollout: RolloutRecord) -> float:
    return (engine.kv_held + rollout.tokens) / engine.kv_tokens


def _looked_at(
    engines: list[HostRecord], group: GroupRecord, rollout: RolloutRecord
) -> list[HostRecord]:
    """All engines of a job that has few; else neighbours in their circle, others at each turn."""
    if len(engines) <= LOOKED_AT:
        return engines
    start = (group.ordinal + rollout.index + rollout.turn) * LOOKED_AT % len(engines)
    return [engines[(start + index) % len(engines)] for index in range(LOOKED_AT)]


def _with_room(engines: list[HostRecord], rollout: RolloutRecord) -> list[HostRecord]:
    """Other engines that stay below the threshold with the rollout on them."""
    return [
        engine
        for engine in engines
        if engine.kv_held + rollout.tokens < PRESSURE_TO * engine.kv_tokens
        and engine.host_id != rollout.host
        and engine.may_migrate
    ]


def _target(job: JobRecord, group: GroupRecord, room: list[HostRecord]) -> HostRecord | None:
    """The engine with the least pressure; one that holds the group's prefix is better."""
    return min(
        (engine for engine in room if placement.may_run(job, group, engine)),
        key=lambda e: (e.host_id not in group.members_on, pressure(e), e.host_id),
        default=None,
    )
