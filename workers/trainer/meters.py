"""Figures of a step. Sums and maxima over sampled tokens, so that they merge in any split."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from domain.trajectory import GroupPayload
from workers.trainer.batching import Rows
from workers.trainer.losses import k3

if TYPE_CHECKING:
    from workers.trainer.accumulate import Terms

STALENESS_BINS: Final = 8
"""Histogram `staleness_0` .. `staleness_7`; the last bin takes everything older."""


@dataclass(frozen=True, slots=True)
class Meters:
    """Sums over sampled tokens. `fresh` tokens were sampled by the weights that are being trained:
    only there does a difference of log-probabilities mean engine and trainer disagree."""

    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    bounded: float = 0.0
    weight: float = 0.0
    weight_square: float = 0.0
    fresh: float = 0.0
    mismatch_kl: float = 0.0
    mismatch_max: float = 0.0
    drift_kl: float = 0.0

    @classmethod
    def merged(cls, parts: Iterable["Meters"]) -> "Meters":
        """Of all parts together."""
        parts = list(parts)
        sums = {
            name: math.fsum(getattr(part, name) for part in parts)
            for name in cls.__slots__
            if name != "mismatch_max"
        }
        return cls(**sums, mismatch_max=max((p.mismatch_max for p in parts), default=0.0))


def meters_of(rows: Rows, terms: "Terms") -> Meters:
    """Figures of one forward."""
    is_sampled = rows.mask > 0
    is_older = is_sampled & (rows.lag > 0)
    # Behind an older token the engine sampled over keys and values of older weights, as it should.
    is_fresh = is_sampled & (rows.lag <= 0) & (is_older.cumsum(dim=1) == 0)
    divergence = k3(rows.rollout_logprobs, terms.new)
    delta = (terms.new - rows.rollout_logprobs).abs()
    weight = torch.where(is_sampled, terms.weight, 0.0)
    sums = torch.stack(
        [
            _sum(is_sampled),
            _sum(terms.loss.detach()),
            _sum(torch.where(is_sampled, terms.entropy, 0.0)),
            _sum(terms.is_clipped),
            _sum(terms.is_bounded),
            _sum(weight),
            _sum(weight * weight),
            _sum(is_fresh),
            _sum(torch.where(is_fresh, divergence, 0.0)),
            torch.where(is_fresh, delta, 0.0).max().double(),
            _sum(torch.where(is_sampled, divergence, 0.0)),
        ]
    )
    return Meters(*sums.tolist())


def _sum(values: Tensor) -> Tensor:
    return values.double().sum()


def staleness_of(payload: GroupPayload, step: int) -> tuple[int, ...]:
    """Per member that sampled anything: step - 1 - version of its oldest token."""
    oldest = [
        min((s.oldest_version for s in m.segments if s.oldest_version is not None), default=None)
        for m in payload.members
    ]
    return tuple(step - 1 - version for version in oldest if version is not None)


def metrics_of(
    meters: Meters, rewards: Sequence[float], staleness: Sequence[int]
) -> Mapping[str, float]:
    """Named metrics of a whole step; means are per sampled token or per member."""
    tokens, fresh = max(meters.tokens, 1.0), max(meters.fresh, 1.0)
    mean = math.fsum(rewards) / max(len(rewards), 1)
    spread = math.fsum((r - mean) ** 2 for r in rewards) / max(len(rewards), 1)
    effective = meters.weight**2 / meters.weight_square if meters.weight_square > 0 else 0.0
    return {
        "reward_mean": mean,
        "reward_std": math.sqrt(spread),
        "rollouts": float(len(rewards)),
        "tokens": meters.tokens,
        "loss": meters.loss / tokens,
        "entropy": meters.entropy / tokens,
        "clip_fraction": meters.clipped / tokens,
        "log_ratio_bounded": meters.bounded,
        "mismatch_kl": meters.mismatch_kl / fresh,
        "mismatch_max": meters.mismatch_max,
        "policy_drift_kl": meters.drift_kl / tokens,
        "effective_sample_share": effective / tokens,
        **_staleness_metrics(staleness),
    }


def _staleness_metrics(staleness: Sequence[int]) -> dict[str, float]:
    bins = [0] * STALENESS_BINS
    for value in staleness:
        bins[min(max(value, 0), STALENESS_BINS - 1)] += 1
    return {
        "staleness_mean": math.fsum(staleness) / max(len(staleness), 1),
        "staleness_max": float(max(staleness, default=0)),
        **{f"staleness_{lag}": float(count) for lag, count in enumerate(bins) if count},
    }
