"""The k3 estimator: a penalty against a reference, and a meter of engine-trainer mismatch."""

from torch import Tensor

from workers.trainer.losses.bounded import bounded_exp


def k3(sampled: Tensor, other: Tensor) -> Tensor:
    """Unbiased estimate of KL(sampled || other) per token: exp(d) - 1 - d, d = other - sampled.

    Schulman 2020, "Approximating KL divergence"; GRPO (arXiv 2402.03300), equation 4. Only the
    exponential's input is bounded: beyond the bound the linear part still pulls both together.
    """
    difference = other - sampled
    return bounded_exp(difference) - 1 - difference
