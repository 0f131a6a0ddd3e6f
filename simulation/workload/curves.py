"""Piecewise linear curves from a normal score to a quantity: how fitted distributions are kept."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHIFT_MAX: Final = 8.0
"""Normal scores lie within this many deviations, so a shift beyond it changes nothing."""

HALVINGS: Final = 16
"""Leaves a shift certain to 16 / 2^16 deviations: far below what a token's rounding does."""


TOTAL_NEAR: Final = 0.001
"""A total met this closely is met: rounding to tokens and seconds does more."""


@dataclass(frozen=True, slots=True)
class Curve:
    """`values` at ascending `scores`, straight between them and level outside."""

    scores: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, score: float) -> float:
        """The value at a score."""
        return self.total_at((score,), 0.0)

    def total_at(self, scores: Sequence[float], shift: float) -> float:
        """The sum of the values at shifted scores."""
        points, values, end = self.scores, self.values, len(self.scores)
        total = 0.0
        for score in scores:
            place = score + shift
            above = bisect_right(points, place)
            if above == 0 or above == end:
                total += values[0] if above == 0 else values[-1]
                continue
            left, low = points[above - 1], values[above - 1]
            total += low + (place - left) / (points[above] - left) * (values[above] - low)
        return total

    def shift_for(self, scores: Sequence[float], total: float) -> float:
        """By how much all scores must move so that their values add up to `total`.

        A total that no shift reaches gives the shift that comes nearest.
        """
        low, high = -SHIFT_MAX, SHIFT_MAX
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            found = self.total_at(scores, middle)
            if abs(found - total) <= TOTAL_NEAR * total:
                return middle
            low, high = (middle, high) if found < total else (low, middle)
        return high


def lower_triangle(correlation: Sequence[Sequence[float]]) -> list[list[float]]:
    """Cholesky factor: independent normals times its rows have this correlation."""
    rows: list[list[float]] = []
    for i, wanted in enumerate(correlation):
        row: list[float] = []
        for j in range(i):
            done = sum(row[k] * rows[j][k] for k in range(j))
            row.append((wanted[j] - done) / rows[j][j])
        rest = wanted[i] - sum(part * part for part in row)
        assert rest > 0, "not the correlation of anything"
        row.append(rest**0.5)
        rows.append(row)
    return rows


def correlated(factor: Sequence[Sequence[float]], independent: Sequence[float]) -> list[float]:
    """Normals with the correlation of the factor, from independent ones."""
    return [sum(a * b for a, b in zip(row, independent, strict=False)) for row in factor]
