"""Token losses and their parts. Every formula names its source and has a float64 reference test.

Shapes: R rows (one per segment of a member), T predicted tokens a row. All inputs are [R, T], the
advantage [R, 1]; padding and tokens that were not sampled are excluded by the caller's mask, never
guessed from ids.
"""

from workers.trainer.losses.bounded import LOG_RATIO_MAX, bounded_exp, is_bounded
from workers.trainer.losses.importance import anchor_logprobs, truncated_importance
from workers.trainer.losses.kl import k3
from workers.trainer.losses.logprobs import Predicted, predict
from workers.trainer.losses.policy import Clip, Surrogate, clipped_surrogate

__all__ = [
    "LOG_RATIO_MAX",
    "Clip",
    "Predicted",
    "Surrogate",
    "anchor_logprobs",
    "bounded_exp",
    "clipped_surrogate",
    "is_bounded",
    "k3",
    "predict",
    "truncated_importance",
]
