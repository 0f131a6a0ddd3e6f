"""AdamW over a decoder, with its state by tensor name, so that checkpoints outlive the process."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from workers.trainer.config import OptimizerSpec

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What torch's AdamW keeps per parameter."""


class NamedAdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2); norms are not decayed.

    Plain loops over tensors (`foreach=False`): the order of every sum is fixed.
    """

    def __init__(self, model: nn.Module, spec: OptimizerSpec) -> None:
        self._parameters = dict(model.named_parameters())
        decayed = [p for p in self._parameters.values() if p.dim() > 1]
        others = [p for p in self._parameters.values() if p.dim() <= 1]
        self._grad_clip = spec.grad_clip
        self._adamw = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": spec.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=spec.lr,
            betas=spec.betas,
            foreach=False,
            fused=False,
        )

    def clip(self) -> float:
        """Scale the gradients to at most the clip norm; returns the norm before."""
        norm = nn.utils.clip_grad_norm_(
            self._parameters.values(), self._grad_clip, error_if_nonfinite=False, foreach=False
        )
        return float(norm)

    def update(self, learning_rate: float) -> None:
        """One step along the gradients, which are left as they are."""
        for parameters in self._adamw.param_groups:
            parameters["lr"] = learning_rate
        self._adamw.step()

    def state(self) -> dict[str, Tensor]:
        """Moments and counts by `name.moment`; empty before the first update."""
        return {
            f"{name}.{moment}": self._adamw.state[parameter][moment].detach()
            for name, parameter in self._parameters.items()
            for moment in MOMENTS
            if parameter in self._adamw.state
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`. Raises KeyError when it belongs to another model."""
        self._adamw.state.clear()
        if not state:
            return
        for name, parameter in self._parameters.items():
            moments = {moment: state[f"{name}.{moment}"].clone() for moment in MOMENTS}
            self._adamw.state[parameter] = {
                "step": moments["step"],
                "exp_avg": moments["exp_avg"].to(parameter.device),
                "exp_avg_sq": moments["exp_avg_sq"].to(parameter.device),
            }
