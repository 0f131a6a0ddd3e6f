"""Clipped policy losses: PPO's (as GRPO uses it), DAPO's wider upper side, and the dual clip."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.trainer.losses.bounded import bounded_exp


@dataclass(frozen=True, slots=True)
class Clip:
    """Range of the ratio: [1 - low, 1 + high]. GRPO: low = high = 0.2; DAPO: 0.2 and 0.28.

    `dual` (above 1, usually 3) bounds the loss of a negative advantage at `dual * |advantage|`.
    """

    low: float
    high: float
    dual: float | None = None


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Loss per token, and where clipping decided it (no gradient flows there)."""

    loss: Tensor
    is_clipped: Tensor


def clipped_surrogate(new: Tensor, old: Tensor, advantage: Tensor, clip: Clip) -> Surrogate:
    """Per token -min(r A, clip(r, 1 - low, 1 + high) A), with r = exp(new - old).

    Schulman et al. 2017 (arXiv 1707.06347), equation 7, per token with one advantage a sequence as
    in GRPO (arXiv 2402.03300), equation 3; asymmetric range: DAPO (arXiv 2503.14476), equation 10.
    Dual clip for A < 0, max(., dual A): Ye et al. 2020 (arXiv 1912.09729), equation 5. `old`
    carries no gradient; the log-ratio is bounded before the exponential.
    """
    ratio = bounded_exp(new - old)
    plain = ratio * advantage
    clipped = torch.clamp(ratio, 1 - clip.low, 1 + clip.high) * advantage
    objective = torch.minimum(plain, clipped)
    is_clipped = clipped < plain
    if clip.dual is not None:
        floor = torch.where(advantage < 0, clip.dual * advantage, -torch.inf)
        is_clipped = is_clipped | (floor > objective)
        objective = torch.maximum(objective, floor)
    return Surrogate(-objective, is_clipped.detach())
