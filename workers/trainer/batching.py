"""A group's payload as padded tensors. Lengths are explicit: padding is never guessed from ids.

One row per segment that holds sampled tokens; a token is predicted by the position before it, so
every per-token tensor has one column less than the ids. Padding stands on the right, where causal
attention never sees it: every real token attends to all real tokens before it, whatever the loss
mask says. Rows of like length share a forward, for what is padded is computed too.
"""

import math
from collections.abc import Iterator, Sequence
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
"""Tokens of one forward, padding included; bounds activations. The split never changes the gradient's sum."""

PADDING_SHARE: Final = 0.1
"""Of a forward's own tokens that its padding may be, beside `PADDING_TOKENS`."""

PADDING_TOKENS: Final = 256
"""Padding that is cheaper than one more forward and backward: some 30 ms of a model of 200,000 parameters
on one core, and less than a call of any size on a GPU."""


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
    """Rows of a group, the shortest first, at most MICRO_BATCH_TOKENS_MAX tokens in each forward.

    Raises NonFinite. `step` is the step being filled: a token's lag is step - 1 - version. `context` is
    the longest row that the model takes.
    """
    for member in payload.members:
        _check(member)
    sampled = [(m, s) for m in payload.members for s in m.segments if any(s.mask)]
    if not sampled:
        return
    sampled.sort(key=lambda one: len(one[1].token_ids))
    lengths = [len(segment.token_ids) for _, segment in sampled]
    assert lengths[-1] <= context, "a segment is longer than the model's context"
    for start, stop in _cuts(lengths):
        width = min(context, _padded(lengths[stop - 1]))
        yield _rows(sampled[start:stop], width, step, pad_id, dtype)


def _cuts(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where to cut rows of rising length: each part takes rows as long as its padding is worth it."""
    start, own = 0, lengths[0]
    for stop in range(1, len(lengths)):
        total = (stop + 1 - start) * _padded(lengths[stop])
        padding = total - own - lengths[stop]
        is_worth_it = padding <= PADDING_TOKENS + PADDING_SHARE * (own + lengths[stop])
        if total > MICRO_BATCH_TOKENS_MAX or not is_worth_it:
            yield start, stop
            start, own = stop, 0
        own += lengths[stop]
    yield start, len(lengths)


def _padded(length: int) -> int:
    return math.ceil(length / PAD_TOKENS) * PAD_TOKENS


def _check(member: TrainRollout) -> None:
    if not (math.isfinite(member.reward) and math.isfinite(member.advantage)):
        raise NonFinite(member.rollout_id, "reward or advantage")
    for segment in member.segments:
        if not all(map(math.isfinite, segment.logprobs)):
            raise NonFinite(member.rollout_id, "rollout log-probability")
        assert segment.mask[:1] != (1,), "a segment begins with a prompt"


def _rows(
    part: Sequence[tuple[TrainRollout, Segment]],
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
