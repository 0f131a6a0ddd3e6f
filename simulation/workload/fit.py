"""Fits the generator to recorded trajectories: `python -m simulation.workload.fit FOLDER`.

Reads FOLDER/STEM.jsonl.gz for each stem and writes `fitted.json` beside this file: quantile tables,
correlations and the summary that the generator must reproduce; no row of the traces.

The tables of single turns are found by repetition. Shifting a trajectory's scores to meet its total
moves their distribution away from the normal one; so a sample is drawn, and the scores at which a
table's values stand are set to the quantiles that the shifted scores really have.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import NormalDist, correlation, fmean
from typing import Any, Final

from simulation.summary import quantile, summarize
from simulation.workload.curves import Curve
from simulation.workload.generator import FITTED_FILE, SERIES, FittedBases, bases_from
from simulation.workload.traces import read_traces
from simulation.workload.trajectory import Trajectory

STEMS: Final = ("swe_glm", "terminal_mini")

FIRST_PROMPT_TOKENS: Final = 2_000
"""The benchmark's: recorded prompts are those of the recording system."""

TOTAL_LEVELS: Final = (
    0.005, 0.025, 0.05, 0.075, 0.09, 0.1, 0.11, 0.175, 0.25, 0.375, 0.5, 0.625, 0.75, 0.825, 0.9, 0.95, 0.995,
)  # fmt: skip
TURN_LEVELS: Final = (
    0.001, 0.01, 0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.175, 0.2, 0.225, 0.25, 0.275, 0.3, 0.325,
    0.35, 0.375, 0.4, 0.425, 0.45, 0.475, 0.5, 0.525, 0.55, 0.575, 0.6, 0.625, 0.65, 0.675, 0.7,
    0.725, 0.75, 0.775, 0.8, 0.825, 0.85, 0.875, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999,
)  # fmt: skip

TREND_PARTS: Final = 12
TOKENS: Final = ("output", "observed")
TOOL_EDGES: Final = (0.012, 0.016, 0.02, 0.025, 0.04, 0.1, 0.3, 1.0, 4.0, 7.0, 9.0, 12.0, 20.0)
"""Bounds of the ranges of seconds in which the shares of kinds are counted."""

SAMPLES: Final = (*(1_000,) * 12, *(6_000,) * 4)
"""Trajectories of each repetition: few while the tables move much, many while they settle."""

TREND_STEP: Final = 0.5
"""Deviations that a trend moves where a part has e times too little; more of it swings."""

SEED: Final = 20_261
UNRELATED_SHARE: Final = 0.005
"""Taken off correlations, so that rounding never makes them impossible together."""

NORMAL: Final = NormalDist()

Columns = Mapping[str, list[list[float]]]
"""Of each series, its values by trajectory."""


def fit(trajectories: Sequence[Trajectory], samples: Sequence[int] = SAMPLES) -> dict[str, Any]:
    """What `bases_from` reads, with the summary of what it was fitted to."""
    recorded = [_with_first_prompt(one) for one in trajectories]
    columns = columns_of(recorded)
    lengths = [float(len(one.turns)) for one in recorded]
    totals = {name: [sum(part) for part in columns[name]] for name in SERIES}
    totals["observed"] = [a + b for a, b in zip(totals["observed"], totals["output"], strict=True)]
    noise = {name: _centred(columns[name]) for name in SERIES}
    fitted: dict[str, Any] = {
        "first_prompt_tokens": FIRST_PROMPT_TOKENS,
        "turns": _table(_curve_of(lengths)),
        "totals_correlation": _correlations(
            [_scores(lengths), *(_scores(totals[name]) for name in SERIES)]
        ),
        "turns_correlation": _correlations(_aligned(noise)),
        "tools": _tool_shares(recorded),
        "series": {
            name: {
                "total": _table(_curve_of(totals[name])),
                "turn": _table(_turn_curve([x for part in columns[name] for x in part])),
                "persistence": round(_persistence(noise[name]), 3),
                "trend": [round(x, 3) for x in _trend(columns[name])],
            }
            for name in SERIES
        },
    }
    shares = {name: _shares_by_part(name, columns[name]) for name in SERIES}
    for sample in samples:
        _settle(fitted, shares, sample)
    fitted["summary"] = asdict(summarize(recorded))
    return fitted


def columns_of(trajectories: Sequence[Trajectory]) -> Columns:
    """Outputs of every turn; seconds and observation of every turn but the last."""
    return {
        "output": [[float(turn.output_tokens) for turn in one.turns] for one in trajectories],
        "tool_s": [[turn.tool_s for turn in one.turns[:-1]] for one in trajectories],
        "observed": [[float(turn.new_tokens) for turn in one.turns[1:]] for one in trajectories],
    }


def _with_first_prompt(one: Trajectory) -> Trajectory:
    first, *rest = one.turns
    return Trajectory((replace(first, new_tokens=FIRST_PROMPT_TOKENS), *rest))


def _scores(values: Sequence[float]) -> list[float]:
    """Normal scores of the ranks; equal values share the middle of their ranks."""
    ordered = sorted(values)
    count = Counter(values)
    first: dict[float, int] = {}
    for rank, value in enumerate(ordered):
        first.setdefault(value, rank)
    return [NORMAL.inv_cdf((first[value] + count[value] / 2) / len(ordered)) for value in values]


def _centred(column: Sequence[Sequence[float]]) -> list[list[float]]:
    """Normal scores of single turns without their trajectory's mean and the trend."""
    flat = iter(_scores([x for part in column for x in part]))
    scores = [[next(flat) for _ in part] for part in column]
    trend = _trend(column)
    return [
        [
            score - fmean(part) - trend[index * TREND_PARTS // len(part)]
            for index, score in enumerate(part)
        ]
        for part in scores
    ]


def _trend(column: Sequence[Sequence[float]]) -> list[float]:
    """Mean score of each part of a trajectory, beside the trajectory's own mean."""
    flat = iter(_scores([x for part in column for x in part]))
    parts: list[list[float]] = [[] for _ in range(TREND_PARTS)]
    for values in column:
        scores = [next(flat) for _ in values]
        for index, score in enumerate(scores):
            parts[index * TREND_PARTS // len(scores)].append(score - fmean(scores))
    return [fmean(part) for part in parts]


def _persistence(noise: Sequence[Sequence[float]]) -> float:
    pairs = [pair for part in noise for pair in pairwise(part)]
    return max(0.0, correlation([a for a, _ in pairs], [b for _, b in pairs]))


def _aligned(noise: Mapping[str, list[list[float]]]) -> list[list[float]]:
    """The three series at the turns that have all three."""
    short = [len(part) for part in noise["tool_s"]]
    return [
        [x for part, count in zip(noise[name], short, strict=True) for x in part[:count]]
        for name in SERIES
    ]


def _correlations(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    kept = 1 - UNRELATED_SHARE
    return [
        [1.0 if a is b else round(kept * correlation(a, b), 3) for b in columns] for a in columns
    ]


def _curve_of(values: Sequence[float]) -> Curve:
    """Quantiles of a trajectory's quantity; the highest is set so that the mean is kept."""
    ordered = sorted(values)
    scores = tuple(NORMAL.inv_cdf(level) for level in TOTAL_LEVELS)
    curve = Curve(scores, tuple(quantile(ordered, level) for level in TOTAL_LEVELS))
    low, high = curve.values[-2], 3 * curve.values[-1]
    for _ in range(40):
        top = (low + high) / 2
        curve = replace(curve, values=(*curve.values[:-1], top))
        mean = fmean(curve.at(NORMAL.inv_cdf((i + 0.5) / 2_000)) for i in range(2_000))
        low, high = (top, high) if mean < fmean(ordered) else (low, top)
    return curve


def _turn_curve(values: Sequence[float]) -> Curve:
    """Quantiles of a turn's quantity; the highest is set so that the mean is kept."""
    ordered = sorted(values)
    points = [quantile(ordered, level) for level in TURN_LEVELS]
    widths = [b - a for a, b in pairwise(TURN_LEVELS)]
    inside = sum(
        width * (a + b) / 2 for width, a, b in zip(widths[:-1], points, points[1:-1], strict=False)
    )
    inside += TURN_LEVELS[0] * points[0] + widths[-1] / 2 * points[-2]
    top = (fmean(ordered) - inside) / (widths[-1] / 2 + 1 - TURN_LEVELS[-1])
    points[-1] = max(top, points[-2])
    return Curve(tuple(NORMAL.inv_cdf(level) for level in TURN_LEVELS), tuple(points))


def _table(curve: Curve) -> dict[str, list[float]]:
    return {
        "scores": [round(score, 4) for score in curve.scores],
        "values": [float(f"{value:.4g}") for value in curve.values],
    }


def _settle(fitted: dict[str, Any], shares: Mapping[str, list[float]], sample: int) -> None:
    """Move the scores of the turns' tables to where a sample's shifted scores have them.

    The trends move too, towards the shares that the parts of a trajectory have of its total: what
    is observed early stays in the context, so its amount there matters, not its rank.
    """
    bases = bases_from(fitted)
    chance = Random(SEED)
    drawn = [bases.scores_at(levels, chance) for levels in even_levels(bases, sample, chance)]
    for which, name in enumerate(SERIES):
        series, curve = fitted["series"][name], bases.series[which].turn
        ordered = sorted(score for scores in drawn for score in scores[which])
        column = [[curve.at(score) for score in scores[which]] for scores in drawn]
        series["turn"]["scores"] = [round(quantile(ordered, level), 4) for level in TURN_LEVELS]
        series["trend"] = [
            round(mean + TREND_STEP * math.log(wanted / got), 3)
            for mean, wanted, got in zip(
                series["trend"], shares[name], _shares_by_part(name, column), strict=True
            )
        ]


def even_levels(bases: FittedBases, count: int, chance: Random) -> list[tuple[float, ...]]:
    """What `count` trajectories draw as a whole, each quantity spread evenly over its distribution.

    Ranks, and with them correlations, are those of a plain sample (Iman and Conover 1982); its
    quantiles owe nothing to chance.
    """
    plain = [bases.levels(chance) for _ in range(count)]
    columns = [_scores(column) for column in zip(*plain, strict=True)]
    return list(zip(*columns, strict=True))


def _shares_by_part(name: str, column: Sequence[Sequence[float]]) -> list[float]:
    """The share that each part of a trajectory has of its total.

    Of tokens over all trajectories together, as long ones fill the engines. Of seconds each
    trajectory counts once: a single tool of minutes would make a trend of its own.
    """
    sums = [0.0] * TREND_PARTS
    for values in column:
        weight = 1.0 if name in TOKENS else 1 / (sum(values) or 1.0)
        for index, value in enumerate(values):
            sums[index * TREND_PARTS // len(values)] += value * weight
    return [part / sum(sums) for part in sums]


def _tool_shares(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Cumulative shares of kinds in each range of seconds; an empty range takes all kinds."""
    bounds = (-1.0, *TOOL_EDGES, float("inf"))
    every = [turn for one in trajectories for turn in one.turns[:-1] if turn.tool is not None]
    kinds: list[list[str]] = []
    shares: list[list[float]] = []
    for low, high in pairwise(bounds):
        inside = [turn for turn in every if low <= turn.tool_s < high] or every
        count = Counter(str(turn.tool) for turn in inside)
        names = sorted(count)
        sums = [sum(count[name] for name in names[: i + 1]) for i in range(len(names))]
        kinds.append(names)
        shares.append([round(part / len(inside), 3) for part in sums])
    return {"edges": list(TOOL_EDGES), "kinds": kinds, "shares": shares}


def main(folder: Path) -> None:
    """Fit every stem and write the file."""
    fits = {stem: fit(read_traces(folder / f"{stem}.jsonl.gz")) for stem in STEMS}
    FITTED_FILE.write_text(json.dumps(fits, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
