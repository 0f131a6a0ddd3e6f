"""Advantages of one group, in float64. Zero variance is decided first, with a named tolerance.

| kind | advantage | source |
|---|---|---|
| grpo | (r - mean) / (std + epsilon), sample deviation | DeepSeekMath (2402.03300) section 4.1.1 |
| dr_grpo | r - mean | Understanding R1-Zero-Like Training (2503.20783), equation 4 |
| rloo | r - mean of the others | Back to Basics (2402.14740), section 2.2 |

Deciding zero variance after the division is the classic fault: eight equal rewards of 0.95 in
float32 have a deviation of 1e-8 and get advantages near 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ZERO_VARIANCE_TOLERANCE: Final = 1e-6
"""Largest spread of rewards that counts as none; rounding of weighted sums stays far below it."""

GRPO_EPSILON: Final = 0.1
"""Added to the deviation. With 0/1 rewards and one hit in eight it damps by a quarter instead of
blowing a lucky sample up; the set-up that is known to learn uses it."""


class AdvantageKind(StrEnum):
    """How rewards of a group become advantages."""

    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"


@dataclass(frozen=True, slots=True)
class Advantages:
    """One value for each reward, in order; all zero where there is no signal."""

    values: tuple[float, ...]
    zero_variance: bool


def group_advantages(
    kind: AdvantageKind, rewards: Sequence[float], epsilon: float = GRPO_EPSILON
) -> Advantages:
    """Advantages of a group; a group of one, or of equal rewards, has no signal.

    Every reward must be finite: a caller that let NaN in is a defect, not an input.
    """
    assert all(math.isfinite(reward) for reward in rewards), "a reward is not finite"
    n = len(rewards)
    if n < 2 or max(rewards) - min(rewards) <= ZERO_VARIANCE_TOLERANCE:
        return Advantages((0.0,) * n, zero_variance=True)
    mean = math.fsum(rewards) / n
    centred = [reward - mean for reward in rewards]
    if kind is AdvantageKind.DR_GRPO:
        return Advantages(tuple(centred), zero_variance=False)
    if kind is AdvantageKind.RLOO:
        # r - (n mean - r) / (n - 1), written so that equal rewards give equal values.
        return Advantages(tuple(value * n / (n - 1) for value in centred), zero_variance=False)
    deviation = math.sqrt(math.fsum(value * value for value in centred) / (n - 1))
    scale = deviation + epsilon
    return Advantages(tuple(value / scale for value in centred), zero_variance=False)
