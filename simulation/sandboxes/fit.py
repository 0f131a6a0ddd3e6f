"""Fits the demand generator to recorded sandboxes: `python -m simulation.sandboxes.fit FOLDER`.

Writes `fitted.json` beside this file: quantile tables, correlations and the summary that the generator
must reproduce; no row of the traces.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from statistics import NormalDist, correlation, fmean, median
from typing import Any, Final

from simulation.sandboxes.demand import MB, MemoryTrace, summarize
from simulation.sandboxes.generator import FITTED_FILE, WHOLES, demand_from
from simulation.sandboxes.traces import read_memory
from simulation.summary import quantile

NORMAL: Final = NormalDist()

WHOLE_LEVELS: Final = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

SECOND_LEVELS: Final = (
    0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999,
)  # fmt: skip

KIND_BOUNDS: Final = (2.0, 5.0)
"""Peaks over the base at which lives become of another kind: higher peaks are shorter, and rarer."""

BURST_PLACE: Final = 0.5
"""Of lives that are not calm, places from here on are one burst in a row, not noise."""

APART: Final = 10
"""Changes between the two ends of a pair from which persistence is told: neighbours are mostly noise."""

START_S: Final = 4
"""Seconds in which a sandbox boots: little memory yet, whatever comes later."""

SETTLINGS: Final = 4
SAMPLE: Final = 3_000
"""Lives of one settling: their 99th percentile is certain to some percent."""

SEED: Final = 20_262

UNRELATED_SHARE: Final = 0.02
"""Taken off correlations, so that rounding never makes them impossible together."""


def fit(traces: Sequence[MemoryTrace], sample: int = SAMPLE) -> dict[str, Any]:
    """What `demand_from` reads, with the summary of what it was fitted to."""
    wholes = [_wholes(trace) for trace in traces]
    bounds = (0.0, *KIND_BOUNDS, math.inf)
    kinds = [
        [(t, w) for t, w in zip(traces, wholes, strict=True) if low <= w[2] < high]
        for low, high in pairwise(bounds)
    ]
    ranks = [_scores([whole[i] for whole in wholes]) for i in range(4)]
    kept = 1 - UNRELATED_SHARE
    cores = [
        v / whole[3] for t, whole in zip(traces, wholes, strict=True) for v in t.cores if whole[3]
    ]
    runs = [(idle, float(n)) for trace in traces for idle, n in _runs(trace)]
    same = [a == b for trace in traces for a, b in pairwise(trace.rss_bytes)]
    fitted = {
        "kinds": [
            {"share": round(len(rows) / len(traces), 4), **_class(rows)} for rows in kinds if rows
        ],
        "correlation": [
            [1.0 if a is b else round(kept * correlation(a, b), 3) for b in ranks] for a in ranks
        ],
        "cores": _table(cores, SECOND_LEVELS),
        "generation_s": _table([n for idle, n in runs if idle], WHOLE_LEVELS),
        "tool_s": _table([n for idle, n in runs if not idle], WHOLE_LEVELS),
        "persistence": round(_persistence(traces), 3),
        "hold": round(fmean(same), 3),
        "start": [
            round(
                median(
                    t.rss_bytes[i] / MB / w[1]
                    for t, w in zip(traces, wholes, strict=True)
                    if len(t) > i
                ),
                3,
            )
            for i in range(START_S)
        ],
        "summary": asdict(summarize(traces)),
    }
    for _ in range(SETTLINGS):
        _settle(fitted, sample)
    return fitted


def _settle(fitted: dict[str, Any], sample: int) -> None:
    """Move what pooling lost towards the summary: the heavy lives' places, and the mean of cores.

    Higher peaks are shorter than their places, pooled over all heavy lives, say; and long lives use
    less of a core than short ones by more than their correlation says.
    """
    chance, source = Random(SEED), demand_from(fitted)
    got, wanted = summarize(source.draw(chance) for _ in range(sample)), fitted["summary"]
    _scale([kind["level"] for kind in fitted["kinds"][1:]], wanted["rss_p99"] / got.rss_p99)
    _scale([kind["cores"] for kind in fitted["kinds"]], wanted["cores_mean"] / got.cores_mean)


def _scale(tables: Sequence[dict[str, Any]], factor: float) -> None:
    for table in tables:
        table["values"] = [float(f"{v * factor if v > 0 else v:.4g}") for v in table["values"]]


def _wholes(trace: MemoryTrace) -> tuple[float, float, float, float]:
    base = median(trace.rss_bytes) / MB
    return float(len(trace)), base, max(trace.rss_bytes) / MB / base, fmean(trace.cores)


def _class(rows: Sequence[tuple[MemoryTrace, tuple[float, float, float, float]]]) -> dict[str, Any]:
    def of(index: int) -> Callable[[tuple[float, ...]], float]:
        return lambda whole: whole[index]

    places = [
        _place(value / MB / base, peak)
        for trace, (_, base, peak, _) in rows
        for value in trace.rss_bytes[START_S:]
    ]
    bursts = [place for place in places if place >= BURST_PLACE]
    is_calm = rows[0][1][2] < KIND_BOUNDS[0]
    level = places if is_calm else [place for place in places if place < BURST_PLACE]
    tables = {
        name: _table([of(index)(whole) for _, whole in rows], WHOLE_LEVELS)
        for index, name in enumerate(WHOLES)
    }
    burst_s = 1 if is_calm else max(1, round(len(bursts) / len(rows)))
    return {**tables, "level": _table(level, SECOND_LEVELS), "burst_s": burst_s}


def _place(level: float, peak: float) -> float:
    """1 at the peak, 0 at the base, below it a share of the base; `level` and `peak` over the base."""
    if level <= 1 or peak <= 1:
        return min(0.0, level - 1)
    return (level - 1) / (peak - 1)


def _runs(trace: MemoryTrace) -> list[tuple[bool, int]]:
    return [(idle, len(list(run))) for idle, run in groupby(trace.in_generation)]


def _scores(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    scores = [0.0] * len(values)
    for rank, index in enumerate(order):
        scores[index] = NORMAL.inv_cdf((rank + 0.5) / len(values))
    return scores


def _persistence(traces: Sequence[MemoryTrace]) -> float:
    """Of ranks within each life from one change to the next."""
    first, second = [], []
    for trace in traces:
        scores = _scores(trace.rss_bytes)
        values = trace.rss_bytes
        changed = [0, *(i for i in range(1, len(values)) if values[i] != values[i - 1])]
        moved = [scores[i] for i in changed]
        first += moved[:-APART]
        second += moved[APART:]
    return float(max(0.0, correlation(first, second)) ** (1 / APART))


def _table(values: Sequence[float], levels: Sequence[float]) -> dict[str, list[float]]:
    ordered = sorted(values)
    return {
        "scores": [round(NORMAL.inv_cdf(level), 4) for level in levels],
        "values": [float(f"{quantile(ordered, level):.4g}") for level in levels],
    }


def main(folder: Path) -> None:
    """Fit and write the file."""
    FITTED_FILE.write_text(json.dumps(fit(read_memory(folder)), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
