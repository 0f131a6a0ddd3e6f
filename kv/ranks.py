"""The rank: one integer that orders rollouts everywhere. Smaller runs first.

    rank = (class x VALUE_SPAN + value) x MEMBER_SPAN + member

The coordinator composes it; engines only compare it, and read the class for residency.
"""

from enum import IntEnum
from typing import Final

VALUE_SPAN: Final = 10**12
"""Upper bound of the value inside a class; ordinals and deciseconds stay below it."""

MEMBER_SPAN: Final = 4096
"""Upper bound of members of a group, so that ranks of two groups never interleave."""

_CLASS_SPAN: Final = VALUE_SPAN * MEMBER_SPAN


class RankClass(IntEnum):
    """Classes of `scheduling.md` section 3, in the order in which they run."""

    EVALUATION = 0
    PROMOTED = 1
    CRITICAL = 2
    NORMAL = 3


LOWEST_HIGH: Final = RankClass.CRITICAL
"""Promoted and critical rollouts, and evaluations before them, are high; the rest is low."""

_CLASSES: Final = {one.value: one for one in RankClass}
"""By number: calling the enum costs three times as much, and every order of ranks asks for the class."""


def compose(rank_class: int, value: int, member: int) -> int:
    """The rank of one member of a group."""
    return (rank_class * VALUE_SPAN + value) * MEMBER_SPAN + member


def class_of(rank: int) -> RankClass:
    """The class that a rank was composed with."""
    return _CLASSES[rank // _CLASS_SPAN]


def is_high(rank: int) -> bool:
    """Whether a rollout of this rank is of the high classes."""
    return class_of(rank) <= LOWEST_HIGH


def group_part(rank: int) -> int:
    """The part that all members of a group share; orders groups."""
    return rank // MEMBER_SPAN
