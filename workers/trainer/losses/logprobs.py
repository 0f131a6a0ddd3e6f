"""Log-probabilities of the distribution that rollouts are really sampled from.

Behaviour log-probabilities are recorded after temperature and nucleus truncation, so the trainer
applies both as well: with equal weights the first importance ratio is then 1 at any setting.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Predicted:
    """Per token after the first of each row, [R, T]: its log-probability, and the entropy there."""

    logprobs: Tensor
    entropy: Tensor


def predict(logits: Tensor, token_ids: Tensor, temperature: float, top_p: float) -> Predicted:
    """Score `token_ids` [R, T+1] by `logits` [R, T+1, vocab] that were computed from them.

    Temperature 0 is greedy decoding, whose log-probabilities are by convention the model's own
    (temperature 1, no truncation). The entropy carries no gradient.
    """
    targets = token_ids[:, 1:, None]
    scaled = _at_least_single(logits[:, :-1]) / (temperature if temperature > 0 else 1.0)
    if temperature > 0 and top_p < 1:
        scaled = scaled.masked_fill(_outside_nucleus(scaled.detach(), targets, top_p), -torch.inf)
    log_probs = torch.log_softmax(scaled, dim=-1)
    chosen = log_probs.gather(-1, targets).squeeze(-1)
    return Predicted(chosen, _entropy(log_probs.detach()))


def _at_least_single(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _entropy(log_probs: Tensor) -> Tensor:
    terms = log_probs.exp() * log_probs
    return -terms.nan_to_num(nan=0.0).sum(dim=-1)


def _outside_nucleus(scaled: Tensor, targets: Tensor, top_p: float) -> Tensor:
    """Tokens outside the smallest set of probability `top_p` (Holtzman et al. 2020, equation 2).

    The recorded token stays inside: under newer weights it may have left the nucleus, and a
    log-probability of -inf would train nothing.
    """
    probabilities, order = torch.softmax(scaled, dim=-1).sort(dim=-1, descending=True, stable=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    outside = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return outside.scatter(-1, targets, False)
