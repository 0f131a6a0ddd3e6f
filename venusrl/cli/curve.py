"""A curve in block characters: columns of eighths, means of neighbours where there is no room."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"

FLAT: Final = 1e-9
"""A span below this is a constant; it is drawn half-way up instead of being stretched."""


def sparkline(values: Sequence[float], width: int) -> str:
    """One row of the latest values."""
    shown = _squeeze(values, width)
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    return "".join(EIGHTHS[1 + round(_share(value, low, high) * 7)] for value in shown)


def draw(values: Sequence[float], width: int = 60, height: int = 8) -> list[str]:
    """Rows from top to bottom, with the axis's numbers at its left end."""
    shown = _squeeze(values, width)
    if not shown:
        return ["(no points yet)"]
    low, high = min(shown), max(shown)
    eighths = [max(1, round(_share(value, low, high) * height * 8)) for value in shown]
    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    margin = max(len(label) for label in labels.values())
    rows = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        columns = "".join(EIGHTHS[min(8, max(0, level - floor))] for level in eighths)
        rows.append(f"{labels.get(row, '').rjust(margin)} ┤{columns}".rstrip())
    return rows


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high - low < FLAT else (value - low) / (high - low)


def _squeeze(values: Sequence[float], width: int) -> list[float]:
    """At most `width` finite values, each the mean of equal runs of neighbours."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) <= width:
        return finite
    edges = [at * len(finite) // width for at in range(width + 1)]
    return [math.fsum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
