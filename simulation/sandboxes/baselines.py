"""What others do with the same node and the same sandboxes, as published.

- `e2b-declared`: a sandbox reserves its declared memory for its whole life; a node takes as many as
  declared memories fit. It reproduces the 100 sandboxes of 4 GiB on 400 GB that are reported of it.
- `e2b-oss`: the open placement scores CPU only and looks at no memory; a node refuses from 200 running
  sandboxes on, and while 3 are starting (E2B infra, `placement_best_of_K.go`, feature flags).

In both a sandbox is a machine with its declared memory: a life that needs more ends in an OOM kill.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.sandboxes.demand import DemandSource, MemoryTrace

OSS_RUNNING_MAX: Final = 200
OSS_STARTING_MAX: Final = 3
STARTING_S: Final = 1
"""Seconds in which a sandbox counts as starting."""


@dataclass(frozen=True, slots=True)
class BaselineTally:
    """What a node came to under one rule."""

    sandboxes: float
    """Mean, once the node has filled."""
    rollouts_ended: int
    killed_by_ceiling: int
    overflow_s: int
    """Seconds in which more was in use than the node has."""


@dataclass(frozen=True, slots=True)
class SlotRule:
    """A node as others fill it."""

    running_max: int
    starting_max: int
    ceiling_bytes: int
    overhead_bytes: int


def declared_rule(capacity_bytes: int, ceiling_bytes: int, overhead_bytes: int) -> SlotRule:
    """`e2b-declared`. Its own overhead is not even charged."""
    running = capacity_bytes // ceiling_bytes
    return SlotRule(running, running, ceiling_bytes, overhead_bytes)


def oss_rule(ceiling_bytes: int, overhead_bytes: int) -> SlotRule:
    """`e2b-oss`."""
    return SlotRule(OSS_RUNNING_MAX, OSS_STARTING_MAX, ceiling_bytes, overhead_bytes)


def run_slots(
    rule: SlotRule, demand: DemandSource, capacity_bytes: int, seconds: int, seed: int
) -> BaselineTally:
    """A demand without end on the rule's slots, second by second."""
    chance = Random(seed)
    live: list[tuple[MemoryTrace, int]] = []
    ended = killed = overflow = lived = 0
    for _ in range(seconds):
        going: list[tuple[MemoryTrace, int]] = []
        used = 0
        for trace, second in live:
            if second == len(trace):
                ended += 1
            elif trace.rss_bytes[second] > rule.ceiling_bytes:
                killed += 1
            else:
                used += trace.rss_bytes[second] + rule.overhead_bytes
                going.append((trace, second + 1))
        starting = min(rule.starting_max * STARTING_S, rule.running_max - len(going))
        going += [(demand.draw(chance), 0) for _ in range(starting)]
        live = going
        overflow += used > capacity_bytes
        lived += len(live)
    return BaselineTally(lived / seconds, ended, killed, overflow)
