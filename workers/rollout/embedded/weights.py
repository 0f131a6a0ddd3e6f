"""Reading weights for an update: everything is checked before a running engine is touched."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import torch
from safetensors import SafetensorError

from domain.engine import Refusal, SyncFailed, WeightKind, WeightRef
from workers.models.adapter import WEIGHTS_FILE as ADAPTER_FILE
from workers.models.adapter import AdapterFault, AdapterRefused, read_adapter
from workers.models.config import ModelConfig
from workers.models.folder import (
    HEAD,
    WeightsUnreadable,
    file_checksum,
    load_weights,
    tied_state,
    weights_sha,
)
from workers.models.shapes import expected_shapes
from workers.rollout.embedded.adapters import pack_adapter
from workers.rollout.embedded.packing import PackedModel, pack
from workers.rollout.embedded.shelf import LoadedAdapter

REFUSALS: Final = {
    AdapterFault.UNREADABLE: Refusal.UNREADABLE,
    AdapterFault.UNSUPPORTED_OPTION: Refusal.UNSUPPORTED_ADAPTER,
    AdapterFault.BAD_NUMBER: Refusal.UNSUPPORTED_ADAPTER,
    AdapterFault.UNSUPPORTED_TARGET: Refusal.WRONG_SHAPES,
    AdapterFault.MISSING_TENSOR: Refusal.WRONG_SHAPES,
    AdapterFault.BAD_SHAPE: Refusal.WRONG_SHAPES,
}
"""What the port says of an adapter that is refused."""


def local_path(uri: str) -> Path:
    """The path behind a `file:` URI or a plain path. Raises `SyncFailed` for text that names no file."""
    try:
        parts = urlsplit(uri)
        path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(uri)
        named = os.fsencode(path)
    except ValueError as error:
        raise SyncFailed(Refusal.UNREADABLE, f"{uri[:100]!r} is no path: {error}") from error
    if b"\0" in named:
        raise SyncFailed(Refusal.UNREADABLE, f"{uri[:100]!r} is no path")
    return path


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


def load_adapter(
    ref: WeightRef, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> LoadedAdapter:
    """Read, check and pack the adapter of `ref`; raises `SyncFailed` with a closed reason."""
    folder = local_path(ref.uri)
    if not ref.adapter or not ref.tenant:
        raise SyncFailed(Refusal.UNSUPPORTED_ADAPTER, "an adapter has a name and a tenant")
    try:
        if file_checksum(folder / ADAPTER_FILE) != ref.checksum:
            detail = f"{folder.name} does not hold the file that was announced"
            raise SyncFailed(Refusal.CHECKSUM, detail)
        adapter = read_adapter(folder, config)
    except OSError as error:
        raise SyncFailed(Refusal.UNREADABLE, f"{folder.name}: {error}") from error
    except AdapterRefused as refused:
        raise SyncFailed(REFUSALS[refused.fault], str(refused)) from refused
    if adapter.sha != ref.sha:
        raise SyncFailed(Refusal.CHECKSUM, f"{folder.name} does not hold the adapter {ref.sha}")
    packed = pack_adapter(adapter, config, device, dtype)
    return LoadedAdapter((ref.tenant, ref.adapter), ref.version, ref.epoch, packed)
