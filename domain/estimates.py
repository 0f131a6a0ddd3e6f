"""What a held-out evaluation says, with how sure it is: avg@k and pass@k over tasks.

Rollouts of one task depend on each other, so tasks are the sampling unit (Miller 2024, "Adding Error
Bars to Evals", section 2.2): each task gives one number, the interval is that of their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SOLVED_AT: Final = 1.0
"""Total reward from which a rollout counts as a success of pass@k: full marks."""

Z: Final = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks with its 95 % interval. `name` is `avg@k` or `pass@k`."""

    name: str
    value: float
    low: float
    high: float
    tasks: int


def estimates(rewards: Sequence[Sequence[float]]) -> tuple[Estimate, ...]:
    """avg@K, then pass@k for k = 1, 2, 4 ... up to K, of the rewards of each task's scored rollouts.

    K is the largest number of scored rollouts of a task. A task enters pass@k only with at least k of
    them, and none without any; a k that no task reaches is left out.
    """
    scored = [task for task in rewards if task]
    if not scored:
        return ()
    most = max(len(task) for task in scored)
    average = _estimate(f"avg@{most}", [math.fsum(task) / len(task) for task in scored])
    passes = (_pass_at(k, scored) for k in _sizes(most))
    return (average, *passes)


def pass_at(n: int, successes: int, k: int) -> float:
    """Chance that k of n rollouts, drawn without replacement, hold a success (Chen et al. 2021, eq. 1)."""
    assert 0 <= successes <= n
    assert 1 <= k <= n
    if n - successes < k:
        return 1.0
    return 1.0 - math.prod((n - successes - i) / (n - i) for i in range(k))


def _sizes(most: int) -> list[int]:
    """Powers of two below `most`, and `most`."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def _pass_at(k: int, scored: Sequence[Sequence[float]]) -> Estimate:
    chances = [
        pass_at(len(task), sum(reward >= SOLVED_AT for reward in task), k)
        for task in scored
        if len(task) >= k
    ]
    return _estimate(f"pass@{k}", chances)


def _estimate(name: str, by_task: Sequence[float]) -> Estimate:
    n = len(by_task)
    mean = math.fsum(by_task) / n
    squares = math.fsum((value - mean) ** 2 for value in by_task)
    variance_of_mean = squares / (n - 1) / n if n > 1 else 0.0
    if min(by_task) >= 0.0 and max(by_task) <= 1.0:
        low, high = _wilson(mean, variance_of_mean, n)
    else:
        reach = Z * math.sqrt(variance_of_mean)
        low, high = mean - reach, mean + reach
    return Estimate(name, mean, low, high, n)


def _wilson(mean: float, variance_of_mean: float, n: int) -> tuple[float, float]:
    """Wilson's interval at the effective sample size (Dean and Pagano 2015, section 2).

    Unlike the normal one it stays inside 0 to 1 and does not shrink to a point at 0 or 1.
    """
    effective = mean * (1 - mean) / variance_of_mean if variance_of_mean > 0 else float(n)
    effective = max(effective, float(n)) if n > 1 else 1.0
    scale = 1 + Z**2 / effective
    centre = (mean + Z**2 / (2 * effective)) / scale
    reach = Z / scale * math.sqrt(mean * (1 - mean) / effective + Z**2 / (4 * effective**2))
    return max(0.0, min(centre - reach, mean)), min(1.0, max(centre + reach, mean))
