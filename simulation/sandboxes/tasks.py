"""Groups for a simulated node: one template for all of them, or several that differ in their base."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from domain.ids import OrganizationId
from sandboxes.core.ledger import TemplateSpec
from sandboxes.core.names import TemplateId
from simulation.sandboxes.demand import DemandSource, MemoryTrace
from simulation.sandboxes.node import Task

TENANTS: Final = 3
BASE_FACTORS: Final = (0.4, 3.0)
"""How much smaller and larger than the recorded base a template's may be."""

RSS_MIN: Final = 8_000_000
"""What even the smallest sandbox holds, bytes."""


@dataclass(frozen=True, slots=True)
class Pages:
    """What every sandbox of a run has in common. Bytes."""

    base_bytes: int
    """Of a recorded sandbox before its first turn."""
    shared_share: float
    """Of the base: the snapshot's pages that stay unwritten. 0: nothing is shared."""
    overhead_bytes: int
    ceiling_bytes: int


@dataclass(frozen=True, slots=True)
class OneTemplate:
    """All groups are clones of the same template."""

    demand: DemandSource
    pages: Pages

    def draw(self, chance: Random) -> Task:
        """The next group."""
        return _task(0, 1.0, self.demand.draw(chance), self.pages)


@dataclass(frozen=True, slots=True)
class ManyTemplates:
    """Templates with bases of their own, the k-th asked for in proportion to 1 / k."""

    demand: DemandSource
    pages: Pages
    factors: Sequence[float]

    def draw(self, chance: Random) -> Task:
        """The next group."""
        weights = [1 / (k + 1) for k in range(len(self.factors))]
        which = chance.choices(range(len(self.factors)), weights)[0]
        return _task(which, self.factors[which], self.demand.draw(chance), self.pages)


def factors_of(count: int, spread: float, seed: int) -> tuple[float, ...]:
    """Bases of so many templates over the recorded one: lognormal, median 1."""
    chance, (least, most) = Random(seed), BASE_FACTORS
    return tuple(min(most, max(least, math.exp(chance.gauss(0.0, spread)))) for _ in range(count))


def _task(which: int, factor: float, trace: MemoryTrace, pages: Pages) -> Task:
    shared = round(pages.shared_share * factor * pages.base_bytes)
    spec = TemplateSpec(
        OrganizationId(f"org{which % TENANTS}"),
        TemplateId(f"tpl{which:03d}"),
        pages.ceiling_bytes,
        shared,
        pages.overhead_bytes,
    )
    if factor != 1.0:
        more = round((factor - 1) * pages.base_bytes)
        moved = tuple(max(min(value, RSS_MIN), value + more) for value in trace.rss_bytes)
        trace = replace(trace, rss_bytes=moved)
    return Task(spec, trace, shared)
