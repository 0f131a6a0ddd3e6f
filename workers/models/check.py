"""Whether a folder is a model that this installation can train and serve; if not, why.

Weights are compared by the names, shapes and types in the headers of their files: no tensor is loaded, and
a description that asks for a giant costs nothing. A tied model's head, where there is one, is read in parts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from domain.model_files import DESCRIPTION_FILES, INDEX_FILE, SHARD, SHARDS_MAX
from workers.models.chat import read_chat
from workers.models.config import ConfigRefused, ModelConfig, parse_config
from workers.models.folder import (
    EMBEDDING,
    HEAD,
    WeightsUnreadable,
    same_rows,
    shards_of,
    weights_file,
)
from workers.models.shapes import expected_shapes
from workers.models.vocab import Vocabulary, read_vocab

DESCRIPTION_BYTES_MAX: Final = 4 << 20
"""Of one JSON file: a vocabulary of a hundred thousand names fits."""

LISTED_MAX: Final = 20
"""Findings of one kind that are listed."""

DTYPES: Final = frozenset({"F32", "BF16", "F16", "F64"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a folder."""

    pointer: str
    code: str
    message: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        """Wire form."""
        return {
            "pointer": self.pointer,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "severity": "error",
        }


class ModelInvalid(Exception):
    """The folder cannot be used."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        """Keep the findings."""
        super().__init__("; ".join(f"{one.pointer} {one.message}" for one in findings))
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True)
class _Header:
    """What a file says of a tensor in it."""

    path: Path
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """What a registry says of a model."""

    context_tokens: int
    parameters: int


def check_folder(folder: Path) -> CheckedModel:
    """Read everything but the tensors. Raises ModelInvalid."""
    missing = [name for name in DESCRIPTION_FILES if not (folder / name).is_file()]
    weights = weights_file(folder)
    if not weights.is_file():
        missing.append(weights.name)
    if missing:
        raise ModelInvalid([_missing(name) for name in missing])
    records = {name: _record(folder / name) for name in DESCRIPTION_FILES}
    config = _config(records["config.json"])
    vocabulary = _described("vocab.json", lambda: _vocabulary(folder / "vocab.json", config))
    _described("chat.json", lambda: read_chat(folder / "chat.json", vocabulary))
    return CheckedModel(config.max_position_embeddings, _weights(weights, config))


def _missing(name: str) -> Finding:
    return Finding(f"/{name}", "missing_file", "The file is missing.")


def _record(path: Path) -> dict[str, Any]:
    if path.stat().st_size > DESCRIPTION_BYTES_MAX:
        message = f"The file is larger than {DESCRIPTION_BYTES_MAX} bytes."
        raise ModelInvalid([Finding(f"/{path.name}", "too_large", message)])
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        message = f"The file is no JSON: {error}"[:300]
        raise ModelInvalid([Finding(f"/{path.name}", "malformed", message)]) from error
    if not isinstance(record, dict):
        raise ModelInvalid([Finding(f"/{path.name}", "malformed", "The file is no JSON object.")])
    return record


def _config(record: Mapping[str, Any]) -> ModelConfig:
    try:
        return parse_config(record)
    except ConfigRefused as refused:
        pointer = f"/config.json/{refused.key}"
        finding = Finding(pointer, refused.fault.value, refused.message, refused.hint)
        raise ModelInvalid([finding]) from refused


def _described(name: str, read: Any) -> Any:
    """What a reader makes of a description; its refusals become a finding."""
    try:
        return read()
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"[:300]
        message = f"The file does not describe what it should ({said})."
        raise ModelInvalid([Finding(f"/{name}", "malformed", message)]) from error


def _vocabulary(path: Path, config: ModelConfig) -> Vocabulary:
    vocabulary = read_vocab(path)
    if vocabulary.size != config.vocab_size:
        raise ValueError(f"{vocabulary.size} tokens, config.json says {config.vocab_size}")
    if vocabulary.pad not in vocabulary.specials or vocabulary.unknown not in vocabulary.specials:
        raise ValueError("pad and unknown must be specials")
    return vocabulary


def _weights(path: Path, config: ModelConfig) -> int:
    """Number of parameters of one file, or of those of an index, that fit the description."""
    wanted = expected_shapes(config)
    found = _indexed(path) if path.name == INDEX_FILE else _headers(path)
    tied = {HEAD} if config.tie_word_embeddings else set()
    findings = _differences(f"/{path.name}", wanted, found, tied)
    if not findings and tied & found.keys() and not _is_tied(found):
        message = f"The model is tied, but {HEAD} is not {EMBEDDING}."
        hint = f"Leave {HEAD} out, or say tie_word_embeddings false."
        findings = [Finding(f"/{found[HEAD].path.name}", "untied_head", message, hint)]
    if findings:
        raise ModelInvalid(findings[:LISTED_MAX])
    return sum(math.prod(shape) for name, shape in wanted.items() if name not in tied)


def _headers(path: Path) -> dict[str, _Header]:
    """What a file says of its tensors, by name."""
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return {
                name: _Header(path, tuple(one.get_shape()), str(one.get_dtype()))
                for name, one in slices.items()
            }
    except (SafetensorError, OSError, ValueError) as error:
        message = f"The file is no safetensors file: {error}"[:300]
        raise ModelInvalid([Finding(f"/{path.name}", "malformed", message)]) from error


def _indexed(index: Path) -> dict[str, _Header]:
    """The same of all files of an index, which say what it promises."""
    _record(index)
    try:
        shards = shards_of(index)
    except WeightsUnreadable as error:
        raise ModelInvalid([Finding(f"/{index.name}", "malformed", str(error)[:300])]) from error
    names = sorted(shards)
    foreign = [name for name in names if not SHARD.fullmatch(name)]
    if foreign or len(names) > SHARDS_MAX:
        message = f"It names {', '.join(foreign)[:200] or len(names)}."
        hint = f"At most {SHARDS_MAX} files, called model-00001-of-00002.safetensors and so on."
        raise ModelInvalid([Finding(f"/{index.name}", "bad_file_name", message, hint)])
    missing = [_missing(name) for name in names if not index.with_name(name).is_file()]
    if missing:
        raise ModelInvalid(missing[:LISTED_MAX])
    found: dict[str, _Header] = {}
    for name in names:
        held = _headers(index.with_name(name))
        if held.keys() != shards[name]:
            differing = ", ".join(sorted(held.keys() ^ shards[name])[:3])
            message = f"{name} and the index disagree about {differing[:200]}."
            raise ModelInvalid([Finding(f"/{index.name}", "bad_index", message)])
        found |= held
    return found


def _is_tied(found: Mapping[str, _Header]) -> bool:
    """Whether the head that is there has the embedding's numbers; both are read in parts."""
    one, other = found[HEAD], found[EMBEDDING]
    with (
        safe_open(str(one.path), framework="pt", device="cpu") as head,
        safe_open(str(other.path), framework="pt", device="cpu") as embedding,
    ):
        return same_rows(head.get_slice(HEAD), embedding.get_slice(EMBEDDING), one.shape[0])


def _differences(
    where: str,
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, _Header],
    optional: set[str],
) -> list[Finding]:
    missing = sorted(wanted.keys() - found.keys() - optional)
    extra = sorted(found.keys() - wanted.keys())
    findings = [
        Finding(where, "missing_tensor", f"There is no tensor {name!r}.") for name in missing
    ]
    findings += [
        Finding(where, "unknown_tensor", f"The tensor {name[:200]!r} is not of this model.")
        for name in extra
    ]
    for name in sorted(wanted.keys() & found.keys()):
        shape, dtype = found[name].shape, found[name].dtype
        if shape != wanted[name]:
            message = f"{name} has the shape {shape}, config.json gives {wanted[name]}."
            findings.append(Finding(where, "bad_shape", message))
        if dtype not in DTYPES:
            message = f"{name} has the type {dtype}."
            findings.append(
                Finding(where, "bad_dtype", message, f"Use {', '.join(sorted(DTYPES))}.")
            )
    return findings
