"""Small models and requests for tests of engines."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from domain.engine import (
    GenRequest,
    Probe,
    ProbeSequence,
    RequestId,
    Sampling,
    WeightKind,
    WeightRef,
)
from domain.ids import GroupId, RolloutId
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder, sequence_logprobs
from workers.models.folder import (
    ModelFolder,
    file_checksum,
    read_folder,
    save_folder,
    save_weights,
    weights_sha,
)
from workers.models.vocab import char_vocabulary

CHARACTERS = "0123456789^+=cra;"
CONTEXT = 96

CHAT: dict[str, object] = {
    "format": "char",
    "roles": {
        "system": {"prefix": "", "suffix": ""},
        "user": {"prefix": "^", "suffix": "="},
        "tool": {"prefix": "r", "suffix": ";"},
    },
    "answer": {"prefix": "a", "suffix": ";"},
    "call": {"prefix": "c", "suffix": ";", "name": "calculator", "argument": "expression"},
}


def decoder(seed: int = 0, context: int = CONTEXT, *, tied: bool = False) -> Decoder:
    """A random two-layer model; its logits are spread enough to tell tokens apart."""
    torch.manual_seed(seed)
    config = ModelConfig(len(CHARACTERS) + 3, 32, 64, 2, 4, context, tie_word_embeddings=tied)
    return Decoder(config)


def model_folder(path: Path, model: Decoder | None = None) -> ModelFolder:
    """A model folder on disk."""
    save_folder(path, model or decoder(), char_vocabulary(CHARACTERS), CHAT)
    return read_folder(path)


def request(
    name: str = "a", ids: Sequence[int] = (10, 1, 2, 11, 3, 4, 12), **fields: Any
) -> GenRequest:
    """A request with defaults; fields of `Sampling` may be given by name too."""
    names = set(Sampling.__dataclass_fields__)
    sampling = Sampling(max_tokens=8)
    sampling = replace(sampling, **{k: v for k, v in fields.items() if k in names})
    return GenRequest(
        request_id=RequestId(fields.pop("request_id", f"req_{name}")),
        rollout_id=RolloutId(fields.pop("rollout_id", f"ro_{name}")),
        group_id=GroupId("grp_0"),
        tenant="org_0",
        token_ids=tuple(ids),
        sampling=sampling,
        **{k: v for k, v in fields.items() if k not in names},
    )


def reference_logprobs(
    model: Decoder, ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probability of each id after the first, by a full forward of the trainer's model."""
    with torch.inference_mode():
        tensor = torch.tensor([list(ids)])
        return sequence_logprobs(model(tensor) / temperature, tensor)[0]


def published(model: Decoder, path: Path, version: int, epoch: int = 0) -> tuple[WeightRef, Probe]:
    """A weights file of this model and the probe that fits it."""
    state = model.state_dict()
    save_weights(state, path)
    sha = weights_sha(state)
    ids = (10, 1, 2, 11, 3, 4, 12, 13, 1, 2, 11, 3, 4, 16)
    ref = WeightRef(version, WeightKind.FILE, str(path), sha, file_checksum(path), epoch)
    sequence = ProbeSequence(ids, tuple(reference_logprobs(model, ids).tolist()))
    return ref, Probe(version, sha, (sequence,))
