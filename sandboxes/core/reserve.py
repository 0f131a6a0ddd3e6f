"""How much room the sandboxes of a node still need, pooled over groups.

Members of a group run the same tests at the same time: they count as one, fully correlated, so that
n members of deviation s deviate by n x s together. Independence is assumed between groups only:

    reserve = sum over booting groups of n x max(0, expected - held)      what is sure to come
            + max(0, sum over settled groups of n x (expected - held))
            + z x sqrt(sum over groups of (n x s)^2)                      what pools
            + largest over groups of n x (reserve - expected)             one group at its worst

and never more than ceilings allow. Settled groups above and below what is expected set each other off:
their sum comes back to its mean, and how far it strays is the pooled term. The last term is the guard
that the square root lacks where few groups hold most of a node.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sandboxes.core.growth import Growth

Z: Final = 2.5
"""Deviations held free below the packing limit. The tenth above it is some deviations more: together
beyond 1e-5 on recorded memory (`make bench-sandbox`)."""

SETTLED_TURN: Final = 4
"""From this turn on a sandbox has loaded what its harness and its tools need."""


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """One group, or the part of it, on this node."""

    members: int
    held_bytes: float
    """Private, of all members together."""
    growth: Growth
    """Of one member, at its turn."""
    turn: int = 0
    """Of the member that is furthest behind."""

    @property
    def is_starting(self) -> bool:
        """In its first turn: not measured yet."""
        return self.turn == 0

    @property
    def is_settled(self) -> bool:
        """Past its first turns: its memory moves around its mean, instead of up to it."""
        return self.turn >= SETTLED_TURN


def pooled_bytes(groups: Iterable[GroupDemand], z: float = Z) -> float:
    """The reserve of a node in bytes; 0 without groups."""
    sure, settled, variance, worst, most = 0.0, 0.0, 0.0, 0.0, 0.0
    for group in groups:
        growth, members = group.growth, group.members
        expected = members * growth.expected_bytes
        if group.is_settled:
            settled += expected - group.held_bytes
        else:
            sure += max(0.0, expected - group.held_bytes)
        variance += (members * growth.deviation_bytes) ** 2
        beyond = members * growth.reserve_bytes - max(expected, group.held_bytes)
        worst = max(worst, beyond)
        most += max(0.0, members * growth.ceiling_bytes - group.held_bytes)
    return min(most, sure + max(0.0, settled) + z * math.sqrt(variance) + worst)


def alone_bytes(growth: Growth) -> float:
    """What one fresh sandbox needs on a node that holds nothing else: the most it can be asked for."""
    return pooled_bytes([GroupDemand(1, 0.0, growth)])
