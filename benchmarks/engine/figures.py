"""Arithmetic over repeated measurements: medians and spreads, ratios of pairs, hit rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and largest of some repetitions."""

    median: float
    least: float
    most: float
    count: int

    def text(self, digits: int = 2) -> str:
        """For tables: the median, and the others in brackets."""
        return f"{self.median:,.{digits}f} ({self.least:,.{digits}f}-{self.most:,.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one repetition."""
    return Spread(median(values), min(values), max(values), len(values))


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Of pairs that were measured one after the other: the machine's load cancels within a pair."""
    return spread([one / other for one, other in zip(numerators, denominators, strict=True)])


def hit_rate(cached: int, recomputed: int) -> float:
    """Tokens found among those that had been computed before; 1 where there were none."""
    known = cached + recomputed
    return cached / known if known else 1.0
