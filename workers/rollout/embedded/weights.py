"""Reading weights for an update: everything is checked before a running engine is touched."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch
from safetensors import SafetensorError

from domain.engine import Refusal, SyncFailed, WeightKind, WeightRef
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.models.folder import (
    HEAD,
    WeightsUnreadable,
    file_checksum,
    load_weights,
    tied_state,
    weights_sha,
)
from workers.rollout.embedded.packing import PackedModel, pack


def local_path(uri: str) -> Path:
    """The path behind a `file:` URI or a plain path."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(uri)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes that weights of this architecture have."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in Decoder(config).state_dict().items()}


def read_weights(
    ref: WeightRef,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> PackedModel:
    """Read, check and pack the weights of `ref`; raises `SyncFailed` with a closed reason.

    A tied model's file may leave its head out; one that differs from the embedding is refused.
    """
    if ref.kind is not WeightKind.FILE:
        raise SyncFailed(Refusal.UNSUPPORTED_KIND, f"{ref.kind.value} weights")
    path = local_path(ref.uri)
    try:
        if file_checksum(path) != ref.checksum:
            raise SyncFailed(Refusal.CHECKSUM, f"{path.name} is not the file that was announced")
        state = load_weights(path)
    except (OSError, SafetensorError, WeightsUnreadable) as error:
        raise SyncFailed(Refusal.UNREADABLE, f"{path.name}: {error}") from error
    wanted, held = expected_shapes(config), {n: tuple(t.shape) for n, t in state.items()}
    if config.tie_word_embeddings:
        held.setdefault(HEAD, wanted[HEAD])
    if held != wanted:
        raise SyncFailed(Refusal.WRONG_SHAPES, f"{path.name} belongs to another architecture")
    if weights_sha(state) != ref.sha:
        raise SyncFailed(Refusal.CHECKSUM, f"{path.name} does not hold the weights {ref.sha}")
    try:
        return pack(config, tied_state(config, state), device, dtype)
    except WeightsUnreadable as error:
        raise SyncFailed(Refusal.UNTIED_HEAD, str(error)) from error
