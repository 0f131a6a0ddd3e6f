"""Synthetic bases that look like recorded ones: the workload where no trace files are.

`fitted.json` holds what `fit.py` measured: quantile tables and correlations, no rows. Two levels:

1. A trajectory draws its number of turns and its totals (outputs, tool seconds, growth of the
   context) together, from their quantile tables over correlated normals.
2. Its turns draw three series of normal scores, correlated with each other (an output, its tool's
   seconds, what the tool returned), persistent from turn to turn, with a trend over the trajectory.
   Each series is shifted as a whole until the turns' values add up to the trajectory's total, so
   totals, single turns and the two peaks of tool seconds all come out as recorded.

A tool's kind follows from its seconds, by the kinds' recorded shares at such seconds.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from simulation.workload.curves import Curve, correlated, lower_triangle
from simulation.workload.trajectory import Tool, Trajectory, Turn

FITTED_FILE: Final = Path(__file__).with_name("fitted.json")

SERIES: Final = ("output", "tool_s", "observed")
"""Quantities of a turn; what a tool returned belongs to the turn that called it."""

OBSERVED_SHARE_MIN: Final = 0.05
"""Of a context's growth: what a draw of many outputs and a short context leaves to observations."""


@dataclass(frozen=True, slots=True)
class Series:
    """How one quantity runs over the turns of a trajectory."""

    total: Curve
    """Of observations, the growth of the context: outputs and observations together."""
    turn: Curve
    persistence: float
    """Correlation of the normal scores of neighbouring turns."""
    trend: tuple[float, ...]
    """Mean normal score in equal parts of a trajectory, from its start to its end."""


@dataclass(frozen=True, slots=True)
class ToolShares:
    """Kinds by seconds: in the i-th range, bounded above by `edges[i]`, kinds up to their share."""

    edges: tuple[float, ...]
    kinds: tuple[tuple[Tool, ...], ...]
    shares: tuple[tuple[float, ...], ...]
    """Cumulative, ending at 1."""

    def kind_of(self, tool_s: float, uniform: float) -> Tool:
        """A kind that takes such seconds."""
        part = bisect_right(self.edges, tool_s)
        return self.kinds[part][bisect_right(self.shares[part][:-1], uniform)]


@dataclass(frozen=True, slots=True)
class FittedBases:
    """A source of synthetic base trajectories."""

    turns: Curve
    series: tuple[Series, Series, Series]
    """Of `SERIES`, in that order."""
    totals_factor: Sequence[Sequence[float]]
    """Of number of turns and the three totals."""
    turns_factor: Sequence[Sequence[float]]
    """Of the three series at one turn."""
    tools: ToolShares
    first_prompt_tokens: int

    def draw(self, chance: Random) -> Trajectory:
        """One synthetic base."""
        return self.draw_at(self.levels(chance), chance)

    def levels(self, chance: Random) -> list[float]:
        """Normal scores of the number of turns and of the total of each series."""
        return correlated(self.totals_factor, [chance.gauss(0, 1) for _ in (0, *SERIES)])

    def draw_at(self, levels: Sequence[float], chance: Random) -> Trajectory:
        """One base whose number of turns and totals are those at `levels`."""
        output, tool_s, observed = (
            [series.turn.at(score) for score in scores]
            for series, scores in zip(self.series, self.scores_at(levels, chance), strict=True)
        )
        kinds = [self.tools.kind_of(seconds, chance.random()) for seconds in tool_s]
        turns = zip(
            [self.first_prompt_tokens, *map(round, observed)],
            [max(1, round(amount)) for amount in output],
            [*kinds, None],
            [*tool_s, 0.0],
            strict=True,
        )
        return Trajectory(tuple(Turn(*turn) for turn in turns))

    def scores_at(self, levels: Sequence[float], chance: Random) -> list[list[float]]:
        """Normal scores of the three series of one trajectory; its last turn has an output only."""
        count = max(1, round(self.turns.at(levels[0])))
        output, tool_s, growth = (
            series.total.at(level) for series, level in zip(self.series, levels[1:], strict=True)
        )
        totals = (output, tool_s, max(growth - output, OBSERVED_SHARE_MIN * growth))
        ends = (count, count - 1, count - 1)
        shifted: list[list[float]] = []
        for series, noise, total, end in zip(
            self.series, self._noise(count, chance), totals, ends, strict=True
        ):
            shift = series.turn.shift_for(noise[:end], total)
            shifted.append([score + shift for score in noise[:end]])
        return shifted

    def _noise(self, count: int, chance: Random) -> list[list[float]]:
        """Normal scores of the three series before their shift."""
        noise: list[list[float]] = [[], [], []]
        state = [0.0, 0.0, 0.0]
        for index in range(count):
            fresh = correlated(self.turns_factor, [chance.gauss(0, 1) for _ in range(3)])
            for which, series in enumerate(self.series):
                kept = series.persistence if index else 0.0
                state[which] = kept * state[which] + math.sqrt(1 - kept**2) * fresh[which]
                part = index * len(series.trend) // count
                noise[which].append(state[which] + series.trend[part])
        return noise


@cache
def fitted_bases(stem: str) -> FittedBases:
    """The generator fitted to the traces of that name; a name without a fit is a `KeyError`."""
    return bases_from(json.loads(FITTED_FILE.read_text())[stem])


def bases_from(fitted: Mapping[str, Any]) -> FittedBases:
    """The generator with these fitted numbers."""
    output, tool_s, observed = (_series(fitted["series"][name]) for name in SERIES)
    tools = fitted["tools"]
    return FittedBases(
        turns=_curve(fitted["turns"]),
        series=(output, tool_s, observed),
        totals_factor=lower_triangle(fitted["totals_correlation"]),
        turns_factor=lower_triangle(fitted["turns_correlation"]),
        tools=ToolShares(
            edges=tuple(tools["edges"]),
            kinds=tuple(tuple(Tool(kind) for kind in part) for part in tools["kinds"]),
            shares=tuple(tuple(part) for part in tools["shares"]),
        ),
        first_prompt_tokens=fitted["first_prompt_tokens"],
    )


def _series(fitted: Mapping[str, Any]) -> Series:
    return Series(
        total=_curve(fitted["total"]),
        turn=_curve(fitted["turn"]),
        persistence=fitted["persistence"],
        trend=tuple(fitted["trend"]),
    )


def _curve(fitted: Mapping[str, Any]) -> Curve:
    return Curve(tuple(fitted["scores"]), tuple(fitted["values"]))
