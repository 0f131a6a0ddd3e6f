"""Numbers of an evaluation: pass@k without bias, means with an interval that knows of tasks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

Z_95: Final = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval; the interval is None for a single task."""

    mean: float
    low: float | None = None
    high: float | None = None


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of them right, hold a right one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al., "Evaluating Large Language Models Trained on Code"
    (arXiv:2107.03374), equation 1; exact integers instead of their product.
    """
    assert 0 <= c <= n, f"{c} of {n} are right"
    assert 1 <= k <= n, f"{k} of {n} are drawn"
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def clustered(groups: Sequence[Sequence[float]]) -> Interval | None:
    """Mean of all values with an interval whose unit is the task, not the rollout.

    Rollouts of one task are not independent; the clustered standard error is that of Miller, "Adding
    Error Bars to Evals" (arXiv:2411.00640), section 2.2. None without values.
    """
    filled = [group for group in groups if group]
    total = sum(len(group) for group in filled)
    if not total:
        return None
    mean = math.fsum(value for group in filled for value in group) / total
    if len(filled) == 1:
        return Interval(mean)
    squares = (math.fsum(value - mean for value in group) ** 2 for group in filled)
    half = Z_95 * math.sqrt(math.fsum(squares)) / total
    return Interval(mean, mean - half, mean + half)
