"""Which share of known tokens is found in the cache when contexts need more pages than the device has.

Pressure is the pages of the contexts that live at once, at their full lengths, over the device's pages.
Outer tiers are off and every rule set gets the same pages, slots and workload.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from benchmarks.engine.figures import Spread, hit_rate, spread
from benchmarks.engine.models import LEAST
from benchmarks.engine.stepping import Player, build, packed
from benchmarks.engine.workload import PRESSURE, Rollout, Shape, draw
from kv.rules import PLAIN, RANKED, Eviction, KvRules
from workers.rollout.embedded.arena import PAGE_TOKENS
from workers.rollout.embedded.packing import PackedModel

PRESSURES: Final = (2.4, 4.7)

SLOTS: Final = 16
"""Half of the rollouts that live: the others wait for tools or for a slot."""

GROUPS_LIVE: Final = 8
"""32 rollouts at once."""

SEEDS: Final = (1, 2, 3, 4, 5)

GAP_MEDIAN_STEPS: Final = 8.0
GAP_SIGMA: Final = 0.8
GAP_MAX_STEPS: Final = 80
"""Tools: most answer within some steps, a few take ten times as long."""

RULES: Final[dict[str, KvRules]] = {
    "trajectory-aware": RANKED,
    "LRU, same queue": replace(RANKED, eviction=Eviction.RECENCY),
    "FCFS and LRU": PLAIN,
}
"""By name: all of ours, ours with only the eviction changed, and what other engines do by default."""

AWARE: Final = "trajectory-aware"


@dataclass(frozen=True, slots=True)
class HitRun:
    """One workload under one rule set."""

    hit_rate: float
    cached_tokens: int
    recomputed_tokens: int
    retractions: int
    steps: int
    active: float
    """Rows that ran in a step, averaged: a hit rate can be bought by letting nobody run."""
    work_s: float
    """What all of it took on the clock of the engine's work: who waits and what is computed again."""


@dataclass(frozen=True, slots=True)
class HitFigures:
    """All seeds of one rule set at one pressure."""

    rules: str
    pressure: float
    pages: Spread
    hit_rate: Spread
    steps: Spread
    active: Spread
    work_s: Spread
    recomputed_tokens: Spread


def gaps(seed: int) -> Callable[[Rollout, int], int]:
    """How many steps each tool call takes, the same under every rule set."""

    def steps(rollout: Rollout, turn: int) -> int:
        chance = Random(f"{seed} gap {rollout.ordinal} {turn}")
        drawn = GAP_MEDIAN_STEPS * math.exp(chance.gauss(0.0, GAP_SIGMA))
        return min(max(round(drawn), 1), GAP_MAX_STEPS)

    return steps


def device_pages(rollouts: Sequence[Rollout], pressure: float) -> int:
    """Pages of a device at this pressure: those of an average set of live contexts over it."""
    pages = [-(-one.length // PAGE_TOKENS) for one in rollouts]
    members = sum(one.group == rollouts[0].group for one in rollouts)
    live = GROUPS_LIVE * members
    return round(sum(pages) / len(pages) * live / pressure)


def run(
    model: PackedModel, rules: KvRules, pressure: float, seed: int, *, shape: Shape = PRESSURE
) -> HitRun:
    """One workload, deterministic."""
    rollouts = draw(shape, seed)
    pages = device_pages(rollouts, pressure)
    core, clock = build(model, SLOTS, pages, rules)
    player = Player(core, clock, rollouts, gaps(seed))
    player.play(GROUPS_LIVE)
    counters, recomputed, work_s = core.counters, core.keys.recomputed_tokens, clock()
    core.close()
    return HitRun(
        hit_rate=hit_rate(counters.cached_tokens, recomputed),
        cached_tokens=counters.cached_tokens,
        recomputed_tokens=recomputed,
        retractions=counters.retractions,
        steps=player.now,
        active=counters.sampled_tokens / player.now,
        work_s=work_s,
    )


def measure(seeds: tuple[int, ...] = SEEDS) -> list[HitFigures]:
    """All pressures and rule sets."""
    model = packed(LEAST)
    return [
        _figures(name, pressure, seeds, [run(model, rules, pressure, seed) for seed in seeds])
        for pressure in PRESSURES
        for name, rules in RULES.items()
    ]


def _figures(name: str, pressure: float, seeds: tuple[int, ...], runs: list[HitRun]) -> HitFigures:
    return HitFigures(
        rules=name,
        pressure=pressure,
        pages=spread([device_pages(draw(PRESSURE, seed), pressure) for seed in seeds]),
        hit_rate=spread([one.hit_rate for one in runs]),
        steps=spread([one.steps for one in runs]),
        active=spread([one.active for one in runs]),
        work_s=spread([one.work_s for one in runs]),
        recomputed_tokens=spread([one.recomputed_tokens for one in runs]),
    )
