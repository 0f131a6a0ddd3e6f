"""CPU of sandboxes: admitted like memory, by what is used, pooled between groups.

A core is given back at once, so nothing is reserved for one group's worst: all are slowed a little.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PRIOR_CORES: Final = 0.125
"""Eight coding sandboxes to a core, measured of recorded ones."""

HALF_LIFE_S: Final = 144_000.0
"""Sandbox-seconds, some hundred rollouts: older ones count half and less."""

PRIOR_S: Final = 7_200.0
"""The prior weighs as much as so many sandbox-seconds, some twenty rollouts."""

Z_CPU: Final = 1.0
"""Deviations held free: beyond it tools take longer for a moment, and nothing is lost."""


@dataclass(slots=True)
class CpuModel:
    """Mean cores of one (tenant, template) over a sandbox's life, and the deviation of a moment."""

    _weight: float = PRIOR_S
    _mean: float = PRIOR_CORES
    _square: float = 2 * PRIOR_CORES**2

    def rollout_ended(self, seconds: float, mean_cores: float, mean_square: float) -> None:
        """A sandbox lived so long, with these means of its cores and of their square.

        Lives weigh by their seconds: short ones use more of a core, and are alive less often.
        """
        if seconds <= 0.0:
            return
        self._weight = self._weight * 0.5 ** (seconds / HALF_LIFE_S) + seconds
        share = seconds / self._weight
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
