"""Sampling from logits, with the log-probability of the distribution really sampled.

Each request draws its uniform numbers once, from a generator seeded by its own seed; a token is the
inverse of the cumulative distribution at the request's next number. What else is in the batch has
no part in it.
"""

from typing import Final

import torch
from torch import Tensor

UNIFORM_MAX: Final = 1.0 - 1e-12
"""Keeps a draw below the whole mass after rounding, so that no token of probability 0 is taken."""


def draw_noise(seed: int, count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for one request, float64, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64).clamp(max=UNIFORM_MAX)


def sample(
    logits: Tensor, noise: Tensor, temperature: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """One token for each row of `logits` [B, V]: ids [B] and log-probabilities [B].

    All other arguments are [B]. Temperature 0 takes the largest logit and reports the model's own
    log-probability. Top-p keeps the smallest set of tokens that reaches the mass, the most probable
    first, and renormalises (Holtzman et al. 2020).
    """
    greedy = temperature == 0.0
    divisor = torch.where(greedy, torch.ones_like(temperature), temperature)
    log_probs = torch.log_softmax(logits / divisor[:, None], dim=-1)
    if bool((top_p < 1.0).any()):
        nucleus = _nucleus(log_probs, top_p)
        log_probs = torch.where(((top_p < 1.0) & ~greedy)[:, None], nucleus, log_probs)
    mass = log_probs.double().exp().cumsum(dim=-1)
    threshold = noise[:, None] * mass[:, -1:]
    tokens = (mass <= threshold).sum(dim=-1).clamp(max=logits.shape[-1] - 1)
    if bool(greedy.any()):
        tokens = torch.where(greedy, log_probs.argmax(dim=-1), tokens)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def _nucleus(log_probs: Tensor, top_p: Tensor) -> Tensor:
    ordered, places = log_probs.sort(dim=-1, descending=True, stable=True)
    mass = ordered.exp()
    before = mass.cumsum(dim=-1) - mass
    kept = torch.where(before < top_p[:, None], ordered, torch.full_like(ordered, float("-inf")))
    normalised = torch.log_softmax(kept, dim=-1)
    return torch.full_like(log_probs, float("-inf")).scatter(-1, places, normalised)
