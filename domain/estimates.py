"""What a held-out evaluation says, with how sure it is: avg@k and pass@k over tasks.

Rollouts of one task depend on each other, so tasks are the sampling unit (Miller 2024, "Adding Error
Bars to Evals", section 2.2): each task gives one number, the interval is that of their mean. Several
environments are strata (Cochran 1977, section 5.3): the total is the mean over the tasks of all, each
counted with its environment's weight, and its variance is the weighted sum of theirs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

FULL_MARKS: Final = 1.0
"""What a rollout must reach to pass where its verdict does not say: one reward of weight 1."""

TOLERANCE: Final = 1e-9
"""A reward that equals full marks up to rounding passes."""

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


@dataclass(frozen=True, slots=True)
class Stratum:
    """Rewards of each task's scored rollouts in one environment; `weight` is that of one task."""

    weight: float
    rewards: Sequence[Sequence[float]]
    full_marks: float = FULL_MARKS
    """The reward from which a rollout of this environment counts as a success of pass@k."""


def estimates(
    rewards: Sequence[Sequence[float]], full_marks: float = FULL_MARKS
) -> tuple[Estimate, ...]:
    """avg@K, then pass@k for k = 1, 2, 4 ... up to K, of the rewards of each task's scored rollouts.

    K is the largest number of scored rollouts of a task. A task enters pass@k only with at least k of
    them, and none without any; a k that no task reaches is left out.
    """
    return total_estimates([Stratum(1.0, rewards, full_marks)])


def total_estimates(strata: Sequence[Stratum]) -> tuple[Estimate, ...]:
    """The same over the tasks of several environments."""
    scored = [replace(one, rewards=[task for task in one.rewards if task]) for one in strata]
    most = max((len(task) for one in scored for task in one.rewards), default=0)
    if not most:
        return ()
    means = [(one.weight, [math.fsum(task) / len(task) for task in one.rewards]) for one in scored]
    passes = (_pass_at(k, scored) for k in sizes(most))
    return (_estimate(f"avg@{most}", means), *passes)


def total_mean(parts: Sequence[tuple[float, float, int]]) -> float | None:
    """Mean over all values of (weight, mean, count) parts, each value with its part's weight."""
    counted = math.fsum(weight * count for weight, _, count in parts)
    if not counted:
        return None
    return math.fsum(weight * count * mean for weight, mean, count in parts) / counted


def pass_at(n: int, successes: int, k: int) -> float:
    """Chance that k of n rollouts, drawn without replacement, hold a success (Chen et al. 2021, eq. 1)."""
    assert 0 <= successes <= n
    assert 1 <= k <= n
    if n - successes < k:
        return 1.0
    return 1.0 - math.prod((n - successes - i) / (n - i) for i in range(k))


def sizes(most: int) -> list[int]:
    """Powers of two below `most`, and `most`: the k of pass@k."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


_Tasks = Sequence[tuple[float, Sequence[float]]]
"""Weight of a task and a number of each task, by stratum."""


def _pass_at(k: int, scored: Sequence[Stratum]) -> Estimate:
    chances = [
        (
            one.weight,
            [
                pass_at(len(task), _successes(task, one.full_marks), k)
                for task in one.rewards
                if len(task) >= k
            ],
        )
        for one in scored
    ]
    return _estimate(f"pass@{k}", chances)


def _successes(task: Sequence[float], full_marks: float) -> int:
    return sum(reward >= full_marks - TOLERANCE for reward in task)


def _estimate(name: str, strata: _Tasks) -> Estimate:
    known = [(weight, values) for weight, values in strata if values]
    every = [value for _, values in known for value in values]
    whole = math.fsum(weight * len(values) for weight, values in known)
    mean = math.fsum(weight * math.fsum(values) for weight, values in known) / whole
    variance = math.fsum(
        (weight * len(values) / whole) ** 2 * _variance_of_mean(values) for weight, values in known
    )
    if min(every) >= 0.0 and max(every) <= 1.0:
        low, high = _wilson(mean, variance, _effective(known))
    else:
        reach = Z * math.sqrt(variance)
        low, high = mean - reach, mean + reach
    return Estimate(name, mean, low, high, len(every))


def _variance_of_mean(values: Sequence[float]) -> float:
    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return squares / (n - 1) / n if n > 1 else 0.0


def _effective(strata: _Tasks) -> float:
    """Tasks that the weighted ones are worth (Kish 1965, section 11.7); all of them at equal weights."""
    whole = math.fsum(weight * len(values) for weight, values in strata)
    return whole**2 / math.fsum(weight**2 * len(values) for weight, values in strata)


def _wilson(mean: float, variance_of_mean: float, n: float) -> tuple[float, float]:
    """Wilson's interval at the effective sample size (Dean and Pagano 2015, section 2).

    Unlike the normal one it stays inside 0 to 1 and does not shrink to a point at 0 or 1.
    """
    effective = mean * (1 - mean) / variance_of_mean if variance_of_mean > 0 else n
    effective = max(effective, n) if n > 1 else 1.0
    scale = 1 + Z**2 / effective
    centre = (mean + Z**2 / (2 * effective)) / scale
    reach = Z / scale * math.sqrt(mean * (1 - mean) / effective + Z**2 / (4 * effective**2))
    return max(0.0, min(centre - reach, mean)), min(1.0, max(centre + reach, mean))
