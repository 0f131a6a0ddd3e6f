"""Model folders: `config.json`, `model.safetensors`, `vocab.json`, `chat.json`.

Weights files are safetensors and appear by rename, whole or not at all. `weights_sha` is the
identity of weights everywhere: a version number names a step, the sha names the numbers.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from domain.errors import NotFound
from workers.models.chat import ChatFormat, read_chat
from workers.models.config import ModelConfig, read_config, write_config
from workers.models.decoder import Decoder
from workers.models.vocab import Vocabulary, read_vocab, write_vocab

WEIGHTS_FILE: Final = "model.safetensors"
"""The name that `transformers` expects too."""

BUILTIN_ROOT: Final = Path(__file__).parent / "builtin"
"""Models that ship with the tree, each made by a script in `workers/models/build/`."""

CHECKSUM_CHUNK_BYTES: Final = 1 << 20
"""Read size while hashing a file, so that a large file never sits in memory twice."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder that was read: everything but the weights."""

    path: Path
    config: ModelConfig
    vocabulary: Vocabulary
    chat: ChatFormat

    @property
    def weights_path(self) -> Path:
        """The safetensors file."""
        return self.path / WEIGHTS_FILE


def builtin_names() -> tuple[str, ...]:
    """Registry names of the models that ship with the tree."""
    return tuple(sorted(p.parent.name for p in BUILTIN_ROOT.glob("*/config.json")))


def builtin_path(name: str) -> Path:
    """Folder of a built-in model; an unknown name is `NotFound` and lists the known ones."""
    if name not in builtin_names():
        raise NotFound(f"no built-in model {name!r}; there are {', '.join(builtin_names())}")
    return BUILTIN_ROOT / name


def read_folder(path: Path) -> ModelFolder:
    """Read everything but the weights of a model folder."""
    vocabulary = read_vocab(path / "vocab.json")
    config = read_config(path / "config.json")
    assert vocabulary.size == config.vocab_size, "vocab.json and config.json disagree"
    return ModelFolder(path, config, vocabulary, read_chat(path / "chat.json", vocabulary))


def load_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, by name, on the CPU."""
    return load_file(str(path), device="cpu")


def load_decoder(folder: ModelFolder, weights: Path | None = None) -> Decoder:
    """The model with the folder's weights, or with those of another file of the same shapes."""
    decoder = Decoder(folder.config)
    state = load_weights(weights or folder.weights_path)
    if folder.config.tie_word_embeddings:
        state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    decoder.load_state_dict(state)
    return decoder


def save_weights(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a safetensors file; it appears under its name only when it is whole and on disk."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    save_file({name: t.detach().cpu().contiguous().clone() for name, t in state.items()}, partial)
    with partial.open("rb") as handle:
        os.fsync(handle.fileno())
    partial.replace(path)


def save_folder(
    path: Path,
    decoder: Decoder,
    vocabulary: Vocabulary,
    chat: Mapping[str, object],
) -> None:
    """Write a whole model folder; `chat` is the record of `chat.json`."""
    path.mkdir(parents=True, exist_ok=True)
    write_config(decoder.config, path / "config.json")
    write_vocab(vocabulary, path / "vocab.json")
    text = json.dumps(chat, indent=2, sort_keys=True) + "\n"
    (path / "chat.json").write_text(text, encoding="utf-8")
    save_weights(decoder.state_dict(), path / WEIGHTS_FILE)


def weights_sha(state: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes of all tensors, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def file_checksum(path: Path) -> str:
    """sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(CHECKSUM_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
