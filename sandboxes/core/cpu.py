"""CPU of sandboxes: admitted like memory, by what is used, pooled between groups.

A core is given back at once, so nothing is reserved for one group's worst: all are slowed a little.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

PRIOR_CORES: Final = 0.125
"""Eight coding sandboxes to a core, measured of recorded ones."""

HALF_LIFE: Final = 400.0
"""Samples of one rollout each; older ones count half and less."""

PRIOR_ROLLOUTS: Final = 20
"""The prior weighs as much as so many rollouts."""

Z_CPU: Final = 1.0
"""Deviations held free: beyond it tools take longer for a moment, and nothing is lost."""


@dataclass(slots=True)
class CpuModel:
    """Mean cores of one (tenant, template) over a sandbox's life, and the deviation of a moment."""

    _weight: float = field(default=float(PRIOR_ROLLOUTS))
    _mean: float = PRIOR_CORES
    _square: float = 2 * PRIOR_CORES**2

    def rollout_ended(self, mean_cores: float, mean_square: float) -> None:
        """Means over the life of a sandbox, of its cores and of their square."""
        self._weight = self._weight * 0.5 ** (1 / HALF_LIFE) + 1.0
        share = 1.0 / self._weight
        self._mean += share * (mean_cores - self._mean)
        self._square += share * (mean_square - self._square)

    @property
    def expected_cores(self) -> float:
        """Of one sandbox."""
        return self._mean

    @property
    def deviation_cores(self) -> float:
        """Of one sandbox at a moment."""
        return math.sqrt(max(0.0, self._square - self._mean**2))


@dataclass(frozen=True, slots=True)
class GroupCpu:
    """One group on this node."""

    members: int
    expected_cores: float
    deviation_cores: float


def pooled_cores(groups: Iterable[GroupCpu], z: float = Z_CPU) -> float:
    """Cores that the groups need together: members correlated, groups independent."""
    expected, variance = 0.0, 0.0
    for group in groups:
        expected += group.members * group.expected_cores
        variance += (group.members * group.deviation_cores) ** 2
    return expected + z * math.sqrt(variance)
