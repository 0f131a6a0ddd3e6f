"""Least squares with non-negative coefficients, and quantiles: what fits cost models to recorded turns.

Costs are never negative, so a coefficient that comes out below zero is dropped and the others are
fitted again (the active-set step of Lawson and Hanson 1974, chapter 23, from above: enough for three
columns). Pure Python: the fits have a few thousand rows of three columns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SINGULAR: Final = 1e-12
"""Pivot, of columns scaled to length 1, below which two columns say the same."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value and what it is made of; its error counts relative to `scale`."""

    columns: tuple[float, ...]
    value: float
    scale: float


REWEIGHTINGS: Final = 8
"""Rounds of `fit_relative`; the weights stand still after three or four."""


def fit_relative(rows: Sequence[Row], width: int) -> tuple[float, ...]:
    """The same with errors relative to the modelled values, not to the measured ones.

    Iteratively reweighted least squares (Green 1984): weighting by the measured value would believe
    the shortest of several like turns, and busy machines stretch some of them tenfold.
    """
    found = fit(rows, width)
    floor = 1e-3 * math.fsum(row.value for row in rows) / max(len(rows), 1)
    for _ in range(REWEIGHTINGS):
        weighted = [
            Row(row.columns, row.value, max(modelled_value(row, found), floor, 1e-12))
            for row in rows
        ]
        found = fit(weighted, width)
    return found


def fit(rows: Sequence[Row], width: int) -> tuple[float, ...]:
    """Coefficients of `width` columns, none negative; a column that nothing depends on gets 0."""
    kept = list(range(width))
    while kept:
        found = _solve(rows, kept)
        if found is None:
            kept.pop()
            continue
        worst = min(range(len(kept)), key=lambda place: found[place])
        if found[worst] >= 0.0:
            by_column = dict(zip(kept, found, strict=True))
            return tuple(by_column.get(column, 0.0) for column in range(width))
        kept.pop(worst)
    return (0.0,) * width


def _solve(rows: Sequence[Row], kept: Sequence[int]) -> list[float] | None:
    """Normal equations of the kept columns, each scaled to length 1; None when they are singular."""
    size = len(kept)
    lengths = [
        math.sqrt(math.fsum((row.columns[c] / row.scale) ** 2 for row in rows)) for c in kept
    ]
    if min(lengths) == 0.0:
        # A column of zeros explains nothing; it goes by being solved last.
        return None if size == 1 or lengths[-1] == 0.0 else _without_zero(rows, kept, lengths)
    matrix = [[0.0] * (size + 1) for _ in kept]
    for row in rows:
        scaled = [row.columns[c] / row.scale / lengths[i] for i, c in enumerate(kept)]
        target = row.value / row.scale
        for i in range(size):
            for j in range(size):
                matrix[i][j] += scaled[i] * scaled[j]
            matrix[i][size] += scaled[i] * target
    solved = _eliminate(matrix)
    return None if solved is None else [one / lengths[i] for i, one in enumerate(solved)]


def _without_zero(
    rows: Sequence[Row], kept: Sequence[int], lengths: Sequence[float]
) -> list[float] | None:
    filled = [column for column, length in zip(kept, lengths, strict=True) if length > 0.0]
    found = _solve(rows, filled)
    if found is None:
        return None
    by_column = dict(zip(filled, found, strict=True))
    return [by_column.get(column, 0.0) for column in kept]


def _eliminate(matrix: list[list[float]]) -> list[float] | None:
    """Gauss with row exchange; None when a pivot vanishes."""
    size = len(matrix)
    for i in range(size):
        best = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[best][i]) < SINGULAR:
            return None
        matrix[i], matrix[best] = matrix[best], matrix[i]
        for other in range(size):
            if other != i:
                share = matrix[other][i] / matrix[i][i]
                matrix[other] = [
                    a - share * b for a, b in zip(matrix[other], matrix[i], strict=True)
                ]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]


def log_spread(rows: Sequence[Row], coefficients: Sequence[float]) -> float:
    """Root mean square of log(measured / modelled) over rows with both above 0; 0 without any."""
    squares = [
        math.log(row.value / modelled) ** 2
        for row in rows
        if row.value > 0 and (modelled := modelled_value(row, coefficients)) > 0
    ]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def modelled_value(row: Row, coefficients: Sequence[float]) -> float:
    """What the coefficients say of a row."""
    return math.fsum(a * b for a, b in zip(row.columns, coefficients, strict=True))
