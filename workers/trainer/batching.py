"""A group's payload as padded tensors. Lengths are explicit: padding is never guessed from ids.

One row per segment that holds sampled tokens, in member order; a token is predicted by the
position before it, so every per-token tensor has one column less than the ids. Padding stands on
the right, where causal attention never sees it: every real token attends to all real tokens before
it, whatever the loss mask says.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from domain.errors import VenusError
from domain.ids import RolloutId
from domain.trajectory import GroupPayload, Segment, TrainRollout

PAD_TOKENS: Final = 16
"""Rows are padded to a multiple of it: few distinct shapes, so that kernels are prepared once."""

MICRO_BATCH_TOKENS_MAX: Final = 16_384
"""Padded tokens of one forward; bounds activations. The split never changes the gradient's sum."""


class NonFinite(VenusError):
    """A value that would poison the batch; it names the rollout and is never applied."""

    code = "diverged"

    def __init__(self, rollout_id: RolloutId | None, what: str) -> None:
        """Say what was not finite and, where one rollout is to blame, which."""
        super().__init__(f"{what} is not finite" + (f" in {rollout_id}" if rollout_id else ""))
        self.rollout_id = rollout_id


@dataclass(frozen=True, slots=True)
class Rows:
    """Part of a group for one forward. R rows; ids [R, T+1]; the others [R, T] or [R, 1]."""

    rollout_ids: tuple[RolloutId, ...]
    lengths: tuple[int, ...]
    token_ids: Tensor
    mask: Tensor
    rollout_logprobs: Tensor
    lag: Tensor
    advantage: Tensor

    def to(self, device: torch.device) -> "Rows":
        """The same rows on another device."""
        return Rows(
            self.rollout_ids,
            self.lengths,
            *(
                tensor.to(device)
                for tensor in (
                    self.token_ids,
                    self.mask,
                    self.rollout_logprobs,
                    self.lag,
                    self.advantage,
                )
            ),
        )


def micro_batches(
    payload: GroupPayload, step: int, pad_id: int, context: int, dtype: torch.dtype
) -> Iterator[Rows]:
    """Rows of a group, at most MICRO_BATCH_TOKENS_MAX padded tokens each; raises NonFinite.

    `step` is the step being filled: a token's lag is step - 1 - version. `context` is the longest
    row that the model takes.
    """
    for member in payload.members:
        _check(member)
    sampled = [(m, s) for m in payload.members for s in m.segments if any(s.mask)]
    if not sampled:
        return
    longest = max(len(segment.token_ids) for _, segment in sampled)
    assert longest <= context, "a segment is longer than the model's context"
    width = min(context, math.ceil(longest / PAD_TOKENS) * PAD_TOKENS)
    for part in _parts(sampled, max(1, MICRO_BATCH_TOKENS_MAX // width)):
        yield _rows(part, width, step, pad_id, dtype)


def _parts(
    sampled: list[tuple[TrainRollout, Segment]], rows_max: int
) -> Iterator[tuple[tuple[TrainRollout, Segment], ...]]:
    for start in range(0, len(sampled), rows_max):
        yield tuple(sampled[start : start + rows_max])


def _check(member: TrainRollout) -> None:
    if not (math.isfinite(member.reward) and math.isfinite(member.advantage)):
        raise NonFinite(member.rollout_id, "reward or advantage")
    for segment in member.segments:
        if not all(map(math.isfinite, segment.logprobs)):
            raise NonFinite(member.rollout_id, "rollout log-probability")
        assert segment.mask[:1] != (1,), "a segment begins with a prompt"


def _rows(
    part: tuple[tuple[TrainRollout, Segment], ...],
    width: int,
    step: int,
    pad_id: int,
    dtype: torch.dtype,
) -> Rows:
    def padded(vectors: list[tuple[int, ...]] | list[tuple[float, ...]], fill: float) -> Tensor:
        return torch.tensor([[*v, *[fill] * (width - len(v))] for v in vectors], dtype=dtype)

    segments = [segment for _, segment in part]
    versions = padded([s.versions for s in segments], -1)[:, 1:]
    mask = padded([s.mask for s in segments], 0)[:, 1:]
    return Rows(
        rollout_ids=tuple(member.rollout_id for member, _ in part),
        lengths=tuple(len(s.token_ids) for s in segments),
        token_ids=padded([s.token_ids for s in segments], pad_id).long(),
        mask=mask,
        rollout_logprobs=padded([s.logprobs for s in segments], 0.0)[:, 1:],
        lag=torch.where(mask > 0, step - 1 - versions, 0),
        advantage=torch.tensor([[member.advantage] for member, _ in part], dtype=dtype),
    )
