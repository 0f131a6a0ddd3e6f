"""What an engine obeys for a job: queue discipline, eviction, gaps, retraction, by strategy.

The rules of each strategy are those of the system that it is named after; its module in
`scheduler.core.strategies` names the sources. Engines get the job's `Scheduling` and ask `rules_of`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from domain.plan import Mechanism, Scheduling, StrategyName
from kv.ttl import DEFAULT_LIMITS, TtlLimits


class Queue(StrEnum):
    """Order in which waiting turns get slots and prefill."""

    ARRIVAL = "arrival"
    RANK = "rank"


class Eviction(StrEnum):
    """Which pages go when the device is full."""

    RECENCY = "recency"
    """Least recently used first, whoever they belong to."""
    CLASSES = "classes"
    """unused, then low_ref, then (only while high demand does not fit) high_ref."""


class Gaps(StrEnum):
    """What happens to the pages of a rollout whose tool runs."""

    EVICTABLE = "evictable"
    """They stay until somebody needs the room."""
    EXPECTED = "expected"
    """The tool's expected time decides: keep, move to the host tier, or give up."""
    TTL = "ttl"
    """Pinned for a time to live, then evictable (Continuum)."""


@dataclass(frozen=True, slots=True)
class KvRules:
    """Rules of one job at an engine."""

    queue: Queue = Queue.ARRIVAL
    eviction: Eviction = Eviction.RECENCY
    gaps: Gaps = Gaps.EVICTABLE
    demotion: bool = False
    """With `Eviction.CLASSES`: whether high demand above the capacity makes the worst-ranked low."""
    streams: bool = False
    """Whether the trainer works on groups as they are assigned."""
    ttl: TtlLimits = DEFAULT_LIMITS
    """Bounds of pins; only with `Gaps.TTL`."""


PLAIN: Final = KvRules()
"""First come, first served over least recently used pages: SGLang's and vLLM's defaults."""

RANKED: Final = KvRules(Queue.RANK, Eviction.CLASSES, Gaps.EXPECTED, demotion=True, streams=True)
"""Everything of `scheduling.md` sections 4 and 5."""

_OF_STRATEGY: Final = {
    StrategyName.VENUS: RANKED,
    StrategyName.ORACLE: RANKED,
    StrategyName.RANDOM: RANKED,
    StrategyName.LONGEST: KvRules(queue=Queue.RANK),
    StrategyName.TTL: KvRules(queue=Queue.RANK, gaps=Gaps.TTL),
}


def rules_of(scheduling: Scheduling) -> KvRules:
    """The rules of a job, its switches applied."""
    rules = _OF_STRATEGY.get(scheduling.strategy, PLAIN)
    if rules.gaps is Gaps.TTL:
        unknown_s = scheduling.knob("ttl_unknown_s", DEFAULT_LIMITS.unknown_s)
        max_s = scheduling.knob("ttl_max_s", DEFAULT_LIMITS.max_s)
        rules = replace(rules, ttl=TtlLimits(unknown_s, max_s))
    if not scheduling.has(Mechanism.PRIORITY):
        rules = replace(rules, queue=Queue.ARRIVAL)
    if not scheduling.has(Mechanism.RESIDENCY):
        rules = replace(rules, eviction=Eviction.RECENCY, demotion=False)
    if not scheduling.has(Mechanism.DEMOTION):
        rules = replace(rules, demotion=False)
    if not scheduling.has(Mechanism.TIERS) and rules.gaps is Gaps.EXPECTED:
        rules = replace(rules, gaps=Gaps.EVICTABLE)
    if not scheduling.has(Mechanism.STREAMING):
        rules = replace(rules, streams=False)
    return rules
