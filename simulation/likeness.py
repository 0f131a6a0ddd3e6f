"""How alike the rewards of one task's rollouts are, and who else could have been among them.

A larger group than the recorded one needs members that nobody saw. Given the seen ones, the next is drawn
from an urn (Blackwell, MacQueen 1973): with `count / (count + concentration)` it is like one of its own
group, else like any rollout of the job. The concentration follows from the intraclass correlation of the
rewards, `1 / (1 + concentration)`, estimated from the variances between and within groups (Fisher 1925,
chapter 7; for groups of unequal size Donner, Koval 1980).
"""

import math
from collections.abc import Sequence

from domain.advantage import ZERO_VARIANCE_TOLERANCE


def correlation(groups: Sequence[Sequence[float]]) -> float:
    """Intraclass correlation of the rewards, 0 to 1; 1 where nothing tells two groups' members apart."""
    known = [group for group in groups if group]
    total = sum(len(group) for group in known)
    if len(known) < 2 or total == len(known):
        return 1.0
    mean = math.fsum(value for group in known for value in group) / total
    means = [math.fsum(group) / len(group) for group in known]
    between = math.fsum(len(g) * (m - mean) ** 2 for g, m in zip(known, means, strict=True))
    within = math.fsum((v - m) ** 2 for g, m in zip(known, means, strict=True) for v in g)
    between /= len(known) - 1
    within /= total - len(known)
    size = (total - math.fsum(len(g) ** 2 for g in known) / total) / (len(known) - 1)
    spread = between + (size - 1.0) * within
    if spread <= ZERO_VARIANCE_TOLERANCE**2:
        return 1.0
    return min(max((between - within) / spread, 0.0), 1.0)


def share_of_own(count: int, alike: float) -> float:
    """Chance that the next member is like one of `count` seen ones of its group."""
    # count / (count + concentration), times `alike` above and below: no division by zero at 0.
    return count * alike / (count * alike + 1.0 - alike) if count else 0.0
