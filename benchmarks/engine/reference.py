"""The other side of the rate: a batched `transformers` loop that keeps its cache between turns.

    for each turn: feed what is new to every row -> sample until the longest answer is done -> run tools

What a careful user writes: one static batch of all rollouts, one cache over the whole conversation, new
tokens padded on the left so that one column gives every row's next logits, padding masked for good,
positions counted by real tokens. A row whose answer is done is fed padding until the longest of the turn
is; rollouts that have ended leave the batch between turns.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine.models import VOCABULARY
from benchmarks.engine.workload import Rollout

Answers = dict[int, list[tuple[int, ...]]]
"""Sampled ids of every turn, by a rollout's ordinal."""


class Kept(StrEnum):
    """Which cache the loop keeps."""

    DYNAMIC = "DynamicCache"
    """What the library takes by itself; it copies all of itself at each step, to grow by a column."""
    STATIC = "StaticCache"
    """Allocated once, and attended to in full; it is told in advance how many columns it will need, which
    nobody knows whose answers end by themselves."""


def load(folder: Path) -> Any:
    """The folder's model as `transformers` runs it, with its fused attention."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, attn_implementation="sdpa"
    ).eval()


@dataclass(slots=True)
class Batch:
    """Rows of the static batch and what the cache holds of them."""

    model: Any
    cache: Any
    rows: list[Rollout]
    mask: Tensor
    """[B, columns of the cache]: 1 where a column holds a real token of the row."""
    pending: list[list[int]]
    """Of each row: ids that the cache does not hold yet."""

    def feed(self, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Append columns to the cache; the best next id of each row and its log-probability."""
        before = self.mask.sum(dim=1, keepdim=True)
        positions = (before + real.cumsum(dim=1) - 1).clamp(min=0)
        self.mask = torch.cat([self.mask, real], dim=1)
        logits = self.model(
            input_ids=ids,
            attention_mask=self.mask,
            position_ids=positions,
            cache=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        logprobs = torch.log_softmax(logits, dim=-1)
        best = logprobs.argmax(dim=-1, keepdim=True)
        return best, logprobs.gather(-1, best)

    def feed_pending(self) -> tuple[Tensor, Tensor]:
        """What every row has new, padded on the left."""
        width = max(map(len, self.pending))
        pad = VOCABULARY.pad_id
        ids = torch.tensor([[pad] * (width - len(one)) + one for one in self.pending])
        real = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in self.pending])
        return self.feed(ids, real)

    def keep(self, places: Sequence[int]) -> None:
        """Only these rows go on."""
        if len(places) == len(self.rows):
            return
        chosen = torch.tensor(places, dtype=torch.long)
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[chosen], layer.values[chosen]
        self.rows = [self.rows[place] for place in places]
        self.pending = [self.pending[place] for place in places]
        self.mask = self.mask[chosen]


def columns(rollouts: Sequence[Rollout]) -> int:
    """Columns of the cache at the end: the widest addition and the longest answer of every turn."""
    total = 0
    for turn in range(max(len(one.turns) for one in rollouts)):
        going = [one.turns[turn] for one in rollouts if turn < len(one.turns)]
        # The last token of an answer is fed with what comes after it.
        total += max(len(one.added) for one in going) + max(one.output for one in going)
    return total


def empty_cache(kept: Kept, model: Any, rollouts: Sequence[Rollout]) -> Any:
    """A cache of this kind for a whole conversation."""
    from transformers import DynamicCache, StaticCache

    if kept is Kept.DYNAMIC:
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=columns(rollouts))


def play(model: Any, rollouts: Sequence[Rollout], kept: Kept = Kept.DYNAMIC) -> Answers:
    """All rollouts to their ends; the ids and their log-probabilities are read back, as training needs."""
    answers: Answers = {one.ordinal: [] for one in rollouts}
    empty = torch.zeros(len(rollouts), 0, dtype=torch.long)
    cache = empty_cache(kept, model, rollouts)
    batch = Batch(model, cache, list(rollouts), empty, [[] for _ in rollouts])
    turn = 0
    with torch.inference_mode():
        while batch.rows:
            for row, one in enumerate(batch.rows):
                batch.pending[row].extend(one.turns[turn].added)
            _turn(batch, turn, answers)
            turn += 1
            batch.keep([at for at, one in enumerate(batch.rows) if turn < len(one.turns)])
    return answers


def _turn(batch: Batch, turn: int, answers: Answers) -> None:
    """One answer of every row. Its last id is fed with the tool's output."""
    lengths = torch.tensor([one.turns[turn].output for one in batch.rows])
    ids, logprobs = batch.feed_pending()
    sampled, scores = [ids], [logprobs]
    for step in range(1, int(lengths.max())):
        is_going = (lengths > step).long()[:, None]
        ids, logprobs = batch.feed(torch.where(is_going > 0, ids, VOCABULARY.pad_id), is_going)
        sampled.append(ids)
        scores.append(logprobs)
    taken = torch.cat(sampled, dim=1).tolist()
    assert bool(torch.cat(scores, dim=1).isfinite().all())
    for row, one in enumerate(batch.rows):
        answer = taken[row][: one.turns[turn].output]
        answers[one.ordinal].append(tuple(answer))
        batch.pending[row] = [answer[-1]]
