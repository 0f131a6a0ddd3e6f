"""Supervised warm-start of a tiny model: enough skill that reward moves, little enough to improve.

Demonstrations are texts with the sampled parts marked; the loss covers those parts only, as in RL.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import torch

from workers.models.config import ModelConfig
from workers.models.decoder import Decoder, sequence_logprobs
from workers.models.vocab import Vocabulary

GRAD_CLIP: Final = 1.0
"""Largest gradient norm; one odd batch must not undo a warm-start of a few hundred steps."""

WARMUP_STEPS: Final = 50
"""Linear rise of the learning rate; AdamW's second moments are noise before it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a demonstration; the model learns the sampled ones."""

    text: str
    is_sampled: bool


Demonstrate = Callable[[Random], Sequence[Piece]]
"""Draws one demonstration."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Some steps on one kind of demonstrations."""

    demonstrate: Demonstrate
    steps: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """Numbers of one warm-start; phases follow each other."""

    phases: tuple[Phase, ...]
    batch: int
    seed: int


def warm_start(config: ModelConfig, vocabulary: Vocabulary, recipe: Recipe) -> Decoder:
    """Train a fresh decoder on drawn demonstrations; equal recipes give equal weights."""
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    rng = Random(recipe.seed)
    decoder = Decoder(config)
    optimizer = torch.optim.AdamW(decoder.parameters())
    plan = [phase for phase in recipe.phases for _ in range(phase.steps)]
    for step, phase in enumerate(plan, start=1):
        for parameters in optimizer.param_groups:
            parameters["lr"] = phase.learning_rate * min(1.0, step / WARMUP_STEPS)
        demonstrations = [phase.demonstrate(rng) for _ in range(recipe.batch)]
        ids, mask = _batch(demonstrations, vocabulary)
        loss = -(sequence_logprobs(decoder(ids), ids) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), GRAD_CLIP)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return decoder


def _batch(
    demonstrations: Sequence[Sequence[Piece]], vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [[vocabulary.encode(p.text) for p in pieces] for pieces in demonstrations]
    length = max(sum(map(len, row)) for row in rows)
    ids = torch.full((len(rows), length), vocabulary.pad_id)
    mask = torch.zeros(len(rows), length)
    for at, (row, pieces) in enumerate(zip(rows, demonstrations, strict=True)):
        offset = 0
        for piece_ids, piece in zip(row, pieces, strict=True):
            ids[at, offset : offset + len(piece_ids)] = torch.tensor(piece_ids)
            mask[at, offset : offset + len(piece_ids)] = float(piece.is_sampled)
            offset += len(piece_ids)
    return ids, mask[:, 1:]
