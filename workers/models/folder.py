"""Model folders: `config.json`, `model.safetensors`, `vocab.json`, `chat.json`.

Large models come as several weights files beside `model.safetensors.index.json`, which says where
each tensor lies; what the index promises must be there, and nothing else is read.
Weights files are safetensors and appear by rename, whole or not at all. `weights_sha` is the
identity of weights everywhere: a version number names a step, the sha names the numbers.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from domain.errors import NotFound, VenusError
from domain.model_files import INDEX_FILE, WEIGHTS_FILE
from workers.models.chat import ChatFormat, read_chat
from workers.models.config import ModelConfig, read_config, write_config
from workers.models.decoder import Decoder
from workers.models.shapes import expected_shapes
from workers.models.vocab import Vocabulary, read_vocab, write_vocab

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
"""The two tensors that a tied model has once; published files leave the second out."""

BUILTIN_ROOT: Final = Path(__file__).parent / "builtin"
"""Models that ship with the tree, each made by a script in `workers/models/build/`."""

CHECKSUM_CHUNK_BYTES: Final = 1 << 20
"""Read size while hashing a file, so that a large file never sits in memory twice."""


COMPARED_ROWS: Final = 1024
"""Of two tables at a time: one of a hundred thousand rows never sits in memory twice."""


class WeightsUnreadable(VenusError):
    """A folder's weights are not whole, or contradict its description."""

    code = "weights_unreadable"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model folder that was read: everything but the weights."""

    path: Path
    config: ModelConfig
    vocabulary: Vocabulary
    chat: ChatFormat

    @property
    def weights_path(self) -> Path:
        """The safetensors file, or the index of several."""
        return weights_file(self.path)


def weights_file(folder: Path) -> Path:
    """The safetensors file of a folder; the index of several where there is no such file."""
    single, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    return index if index.is_file() and not single.is_file() else single


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
    """Tensors of a safetensors file, or of all files of an index, by name, on the CPU.

    Raises WeightsUnreadable when a file of an index is missing or does not hold what it should.
    """
    if not path.name.endswith(".index.json"):
        return load_file(str(path), device="cpu")
    state: dict[str, Tensor] = {}
    for shard, names in sorted(shards_of(path).items()):
        try:
            held = load_file(str(path.with_name(shard)), device="cpu")
        except (OSError, SafetensorError) as error:
            raise WeightsUnreadable(f"{shard}: {error}") from error
        if held.keys() != names:
            differing = ", ".join(sorted(held.keys() ^ names)[:3])
            raise WeightsUnreadable(f"{shard} and {path.name} disagree about {differing}")
        state.update(held)
    return state


def shards_of(path: Path) -> dict[str, set[str]]:
    """Names of the tensors of every file of an index. Raises WeightsUnreadable."""
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards: dict[str, set[str]] = {}
        for name, shard in places.items():
            if Path(shard).name != shard:
                raise WeightsUnreadable(f"{path.name} leads out of its folder: {shard[:100]}")
            shards.setdefault(shard, set()).add(name)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsUnreadable(f"{path.name} is no index of weights: {error}"[:300]) from error
    if not shards:
        raise WeightsUnreadable(f"{path.name} names no tensor")
    return shards


def tied_state(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state with the head that it means: of a tied model, the embedding.

    Raises WeightsUnreadable for tensors that are not the model's, as the check of a folder does, and for a
    tied model with a head of its own: one of the two is wrong.
    """
    whole = dict(state)
    if config.tie_word_embeddings and EMBEDDING in whole:
        whole.setdefault(HEAD, whole[EMBEDDING])
    _fits(expected_shapes(config), whole)
    if config.tie_word_embeddings:
        head, embedding = whole[HEAD], whole[EMBEDDING]
        if head is not embedding and not same_rows(head, embedding, len(head)):
            raise WeightsUnreadable(f"the model is tied, but {HEAD} is not {EMBEDDING}")
        whole[HEAD] = embedding
    return whole


def _fits(wanted: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> None:
    if wanted.keys() != state.keys():
        differing = ", ".join(sorted(wanted.keys() ^ state.keys())[:3])
        raise WeightsUnreadable(f"config.json and the weights disagree about {differing[:300]}")
    for name, tensor in state.items():
        if tuple(tensor.shape) != wanted[name]:
            shape = tuple(tensor.shape)
            detail = f"{name} has the shape {shape}, config.json gives {wanted[name]}"
            raise WeightsUnreadable(detail)
        if not tensor.is_floating_point():
            raise WeightsUnreadable(f"{name} has the type {tensor.dtype}")


def same_rows(one: Tensor | Any, other: Tensor | Any, rows: int) -> bool:
    """Whether two tables, in memory or in a file, hold the same numbers; both have so many rows."""
    for first in range(0, rows, COMPARED_ROWS):
        part = slice(first, first + COMPARED_ROWS)
        if not torch.equal(one[part].double(), other[part].double()):
            return False
    return True


def load_decoder(folder: ModelFolder, weights: Path | None = None) -> Decoder:
    """The model with the folder's weights, or with those of another file of the same shapes."""
    decoder = Decoder(folder.config)
    state = load_weights(weights or folder.weights_path)
    decoder.load_state_dict(tied_state(folder.config, state))
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
