"""The probe that a synced engine must reproduce: fixed ids, and this model's log-probabilities."""

import random
from typing import Final

import torch

from domain.engine import Probe, ProbeSequence
from workers.models.decoder import Decoder, sequence_logprobs

PROBE_SEQUENCES: Final = 4
PROBE_TOKENS: Final = 24
"""96 log-probabilities: each layer and the head speak in every one, so one wrong tensor shows."""

PROBE_SEED: Final = 20260101
"""Fixed for ever: the ids depend on the vocabulary's size alone."""


def probe_ids(vocab_size: int, context: int) -> tuple[tuple[int, ...], ...]:
    """The fixed sequences, shorter where the context is."""
    rng = random.Random(PROBE_SEED)
    length = min(PROBE_TOKENS, context)
    return tuple(
        tuple(rng.randrange(vocab_size) for _ in range(length)) for _ in range(PROBE_SEQUENCES)
    )


def make_probe(model: Decoder, version: int, sha: str) -> Probe:
    """Score the fixed sequences at temperature 1."""
    ids = probe_ids(model.config.vocab_size, model.config.max_position_embeddings)
    device = next(model.parameters()).device
    with torch.inference_mode():
        token_ids = torch.tensor(ids, device=device)
        logprobs = sequence_logprobs(model(token_ids), token_ids).tolist()
    sequences = tuple(ProbeSequence(i, tuple(p)) for i, p in zip(ids, logprobs, strict=True))
    return Probe(version, sha, sequences)
