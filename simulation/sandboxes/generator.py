"""Synthetic lives of sandboxes that look like recorded ones: the demand where no trace files are.

`fitted.json` holds what `fit.py` measured: quantile tables, no rows. A life is of a kind, by how far its
peak is above its base, and draws length, base, peak and mean cores together.
Its seconds are persistent normal scores, mapped to places between base and peak.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from simulation.sandboxes.demand import MB, MemoryTrace
from simulation.workload.curves import Curve, correlated, lower_triangle

FITTED_FILE: Final = Path(__file__).with_name("fitted.json")

WHOLES: Final = ("duration_s", "base_mb", "peak", "cores")
"""Of a life: its seconds, median megabytes, peak over base, mean cores."""


@dataclass(frozen=True, slots=True)
class FittedClass:
    """Lives of one kind."""

    wholes: tuple[Curve, Curve, Curve, Curve]
    """Of `WHOLES`, in that order."""
    level: Curve
    """From a score to a place: 1 is the peak, 0 the base, below it a share of the base."""
    burst_s: int
    """Seconds at the peak, one after the other."""


@dataclass(frozen=True, slots=True)
class FittedDemand:
    """A source of synthetic lives."""

    kinds: tuple[FittedClass, ...]
    shares: tuple[float, ...]
    """Of the kinds."""
    factor: list[list[float]]
    """Of the four wholes."""
    cores: Curve
    """Of a second, over the life's mean."""
    generation_s: Curve
    tool_s: Curve
    persistence: float
    """Correlation of the scores of neighbouring seconds that differ."""
    hold: float
    """Share of seconds in which memory does not change."""
    start: tuple[float, ...]
    """Shares of the base in the first seconds."""

    def draw(self, chance: Random) -> MemoryTrace:
        """One synthetic life."""
        kind = chance.choices(self.kinds, self.shares)[0]
        scores = correlated(self.factor, [chance.gauss(0, 1) for _ in WHOLES])
        seconds_, base_mb, peak, mean = (
            curve.at(score) for curve, score in zip(kind.wholes, scores, strict=True)
        )
        seconds = max(1, round(seconds_))
        turns, idle = self._phases(seconds, chance)
        raw = [self.cores.at(chance.gauss(0, 1)) for _ in range(seconds)]
        scale = mean * seconds / (sum(raw) or 1.0)
        return MemoryTrace(
            rss_bytes=self._memory(kind, seconds, base_mb, peak, chance),
            cores=tuple(value * scale for value in raw),
            turns=turns,
            in_generation=idle,
        )

    def _memory(
        self, kind: FittedClass, seconds: int, base_mb: float, peak: float, chance: Random
    ) -> tuple[int, ...]:
        noise = (1 - self.persistence**2) ** 0.5
        score, scores = chance.gauss(0, 1), []
        for _ in range(seconds):
            if chance.random() >= self.hold:
                score = self.persistence * score + noise * chance.gauss(0, 1)
            scores.append(score)
        places = [kind.level.at(one) for one in scores]
        top = max(range(seconds), key=scores.__getitem__)
        places[top : top + kind.burst_s] = [1.0] * min(kind.burst_s, seconds - top)
        levels = [1 + place * (peak - 1) if place > 0 else 1 + place for place in places]
        for second, share in enumerate(self.start[:seconds]):
            levels[second] = min(levels[second], share)
        return tuple(max(0, round(base_mb * level * MB)) for level in levels)

    def _phases(self, seconds: int, chance: Random) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        turns: list[int] = []
        idle: list[bool] = []
        turn, owed = 0, 0.0
        while len(turns) < seconds:
            for curve, is_idle in ((self.generation_s, True), (self.tool_s, False)):
                owed += curve.at(chance.gauss(0, 1))
                whole = int(owed)
                owed -= whole
                turns += [turn] * whole
                idle += [is_idle] * whole
            turn += 1
        return tuple(turns[:seconds]), tuple(idle[:seconds])


def demand_from(fitted: Mapping[str, Any]) -> FittedDemand:
    """The source that a fit describes."""

    def curve(table: Mapping[str, Any]) -> Curve:
        return Curve(tuple(table["scores"]), tuple(table["values"]))

    def kind(table: Mapping[str, Any]) -> FittedClass:
        first, second, third, fourth = (curve(table[name]) for name in WHOLES)
        return FittedClass((first, second, third, fourth), curve(table["level"]), table["burst_s"])

    return FittedDemand(
        kinds=tuple(kind(table) for table in fitted["kinds"]),
        shares=tuple(table["share"] for table in fitted["kinds"]),
        factor=lower_triangle(fitted["correlation"]),
        cores=curve(fitted["cores"]),
        generation_s=curve(fitted["generation_s"]),
        tool_s=curve(fitted["tool_s"]),
        persistence=fitted["persistence"],
        hold=fitted["hold"],
        start=tuple(fitted["start"]),
    )


@cache
def fitted_demand() -> FittedDemand:
    """The one in the tree."""
    return demand_from(json.loads(FITTED_FILE.read_text()))
