"""What the ratio is taken against, and the weight that corrects for engine and trainer disagreeing.

The choice (one update per batch): a token sampled by the very weights that are being trained has as
`old` the trainer's own log-probability, so its ratio is 1 and only the engine's numerical
disagreement is left, corrected by the truncated weight. A token of older weights has as `old` the
rollout's log-probability: the clip is then a trust region around the policy that sampled it, and
its truncated weight is 1.
"""

import torch
from torch import Tensor

from workers.trainer.losses.bounded import bounded_exp


def anchor_logprobs(new: Tensor, rollout: Tensor, lag: Tensor) -> Tensor:
    """`old` per token: recomputed where the lag (in versions) is 0, the rollout's elsewhere.

    While a batch accumulates, the weights are those of the step's start, so that `new` itself,
    detached, is the recomputed value.
    """
    return torch.where(lag <= 0, new.detach(), rollout)


def truncated_importance(old: Tensor, rollout: Tensor, cap: float) -> Tensor:
    """min(pi_old / pi_rollout, cap) per token, detached.

    Truncated importance sampling (Ionides 2008), between engine and trainer of one policy: Yao et
    al. 2025, "Your efficient RL framework secretly brings you off-policy training". Usual cap: 2.
    """
    return torch.clamp(bounded_exp(old.detach() - rollout), max=cap)
