"""The gradient of the open step: each group's un-normalised sum is added as the group comes.

The loss of a batch is (sum over sampled tokens) / N with N known only when the step closes, so the
one scale 1/N is applied at the close, before clipping. Linear: exact for the token mean, shrunk
groups, any order and any split. Bitwise repetition holds for one order, which is why the order of
backward is recorded with the step.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from domain.ids import GroupId
from domain.trajectory import GroupPayload
from infra.failpoints import hit
from workers.models.decoder import Decoder
from workers.trainer.batching import NonFinite, Rows, micro_batches
from workers.trainer.config import CorrectionType, TrainSpec
from workers.trainer.losses import (
    Clip,
    anchor_logprobs,
    clipped_surrogate,
    is_bounded,
    k3,
    predict,
    truncated_importance,
)
from workers.trainer.meters import Meters, meters_of, staleness_of

BACKWARD_MIDDLE: Final = "backward.middle"
"""Failpoint between the forward and the backward of a group's rows."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised. `cap` None: no importance weight; `kl_coef` 0: no reference model."""

    clip: Clip
    cap: float | None
    kl_coef: float
    temperature: float
    top_p: float


def objective_of(spec: TrainSpec) -> Objective:
    """The objective that a job's spec asks for."""
    correction = spec.algorithm.correction
    return Objective(
        clip=spec.algorithm.loss.clip,
        cap=correction.cap if correction.type is CorrectionType.TIS else None,
        kl_coef=spec.algorithm.kl.coef,
        temperature=spec.rollout.sampling.temperature,
        top_p=spec.rollout.sampling.top_p,
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token results of one forward, [R, T]; only `loss` carries a gradient."""

    loss: Tensor
    new: Tensor
    entropy: Tensor
    weight: Tensor
    is_clipped: Tensor
    is_bounded: Tensor


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one group added to the open step."""

    group_id: GroupId
    tokens: int
    meters: Meters
    rewards: tuple[float, ...]
    staleness: tuple[int, ...]


def token_terms(
    model: Decoder, rows: Rows, objective: Objective, reference: Decoder | None = None
) -> Terms:
    """Loss of every token of the rows; masked tokens are 0 in `loss`, whatever they held."""
    new = predict(model(rows.token_ids), rows.token_ids, objective.temperature, objective.top_p)
    old = anchor_logprobs(new.logprobs, rows.rollout_logprobs, rows.lag)
    surrogate = clipped_surrogate(new.logprobs, old, rows.advantage, objective.clip)
    weight = torch.ones_like(old)
    if objective.cap is not None:
        weight = truncated_importance(old, rows.rollout_logprobs, objective.cap)
    loss = weight * surrogate.loss
    bounded = is_bounded(new.logprobs.detach() - rows.rollout_logprobs)
    if objective.kl_coef > 0:
        assert reference is not None, "a penalty needs its reference model"
        with torch.no_grad():
            logits = reference(rows.token_ids)
            base = predict(logits, rows.token_ids, objective.temperature, objective.top_p).logprobs
        loss = loss + objective.kl_coef * k3(new.logprobs, base)
        bounded = bounded | is_bounded(base - new.logprobs.detach())
    is_sampled = rows.mask > 0
    return Terms(
        loss=torch.where(is_sampled, loss, 0.0),
        new=new.logprobs.detach(),
        entropy=new.entropy,
        weight=weight,
        is_clipped=surrogate.is_clipped & is_sampled,
        is_bounded=bounded & is_sampled,
    )


class GradientSum:
    """Owns the gradients of `model` between two updates. One thread at a time."""

    def __init__(
        self, model: Decoder, objective: Objective, pad_id: int, reference: Decoder | None = None
    ) -> None:
        self._model = model
        self._objective = objective
        self._pad_id = pad_id
        self._reference = reference
        self.contributions: list[Contribution] = []

    @property
    def tokens(self) -> int:
        """N: sampled tokens of all groups so far."""
        return sum(contribution.tokens for contribution in self.contributions)

    def add(self, payload: GroupPayload, step: int) -> Contribution:
        """Run backward on a group. After NonFinite the sum is undefined until `clear`."""
        parameter = next(self._model.parameters())
        context = self._model.config.max_position_embeddings
        meters = [
            self._backward(rows)
            for rows in micro_batches(payload, step, self._pad_id, context, parameter.dtype)
        ]
        merged = Meters.merged(meters)
        contribution = Contribution(
            group_id=payload.group_id,
            tokens=round(merged.tokens),
            meters=merged,
            rewards=tuple(member.reward for member in payload.members),
            staleness=staleness_of(payload, step),
        )
        self.contributions.append(contribution)
        return contribution

    def scale(self) -> None:
        """Turn the sum into the gradient of the batch's token mean."""
        assert self.tokens > 0, "no sampled token in the whole batch"
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.tokens)

    def clear(self) -> None:
        """Forget all contributions."""
        self._model.zero_grad(set_to_none=True)
        self.contributions.clear()

    def _backward(self, rows: Rows) -> Meters:
        device = next(self._model.parameters()).device
        moved = rows.to(device)
        terms = token_terms(self._model, moved, self._objective, self._reference)
        row_losses = terms.loss.sum(dim=1)
        finite = torch.isfinite(row_losses).tolist()
        if not all(finite):
            raise NonFinite(rows.rollout_ids[finite.index(False)], "loss")
        hit(BACKWARD_MIDDLE)
        if row_losses.requires_grad:
            row_losses.sum().backward()  # type: ignore[no-untyped-call]
        return meters_of(moved, terms)
