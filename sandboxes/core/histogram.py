"""A decaying histogram: quantiles, mean and deviation of what was seen lately, in constant space.

Buckets grow by a constant factor, so that a quantile is off by at most that factor whatever its size
(the histogram of Kubernetes' vertical autoscaler). Age is counted in samples, not in seconds: a
template that nobody used for a week is not forgotten.
"""

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

SMALLEST: Final = 1 << 20
"""Upper bound of the first bucket, bytes: below 1 MiB sandboxes do not differ."""

FACTOR: Final = 1.05
"""Of neighbouring bounds: a quantile is at most 5 % too high."""

BUCKETS: Final = 256
"""The last begins at 250 GiB, above any sandbox."""

WEIGHT_MAX: Final = 1e12
"""Weights are scaled down before they lose digits."""

ROUNDING: Final = 1e-9
"""Share of the total by which sums of weights may be off."""


def _bucket_of(value: float) -> int:
    if value <= SMALLEST:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log(value / SMALLEST) / math.log(FACTOR)))


@dataclass(slots=True)
class DecayingHistogram:
    """`half_life` in samples: after so many more a sample counts half."""

    half_life: float
    _weight: float = 1.0
    """Of the next sample: newer ones weigh more, instead of older ones less."""
    _total: float = 0.0
    _sum: float = 0.0
    _squares: float = 0.0
    _buckets: list[float] = field(default_factory=lambda: [0.0] * BUCKETS)

    def add(self, value: float) -> None:
        """One sample, 0 or more."""
        assert value >= 0
        self._buckets[_bucket_of(value)] += self._weight
        self._total += self._weight
        self._sum += self._weight * value
        self._squares += self._weight * value * value
        self._weight *= 2.0 ** (1.0 / self.half_life)
        if self._weight > WEIGHT_MAX:
            self._scale(1.0 / self._weight)

    def _scale(self, by: float) -> None:
        self._weight *= by
        self._total *= by
        self._sum *= by
        self._squares *= by
        self._buckets = [weight * by for weight in self._buckets]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added yet."""
        return self._total == 0.0

    @property
    def weight(self) -> float:
        """How many samples of now the older and newer ones weigh together."""
        return self._total / self._weight

    @property
    def mean(self) -> float:
        """Weighted; 0 when empty."""
        return self._sum / self._total if self._total else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation; 0 when empty."""
        if not self._total:
            return 0.0
        return math.sqrt(max(0.0, self._squares / self._total - self.mean**2))

    def quantile(self, level: float) -> float:
        """Upper bound of the bucket that holds the level; 0 when empty."""
        if not self._total:
            return 0.0
        wanted = level * self._total * (1 - ROUNDING)
        below = accumulate(self._buckets)
        bucket = next((i for i, weight in enumerate(below) if weight >= wanted), BUCKETS - 1)
        return SMALLEST * FACTOR**bucket
