"""Whether a folder is a model that this installation can train and serve; if not, why.

Weights are compared by the names, shapes and types in the file's header: no tensor is loaded, and a
description that asks for a giant costs nothing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from workers.models.chat import read_chat
from workers.models.config import ConfigRefused, ModelConfig, parse_config
from workers.models.folder import WEIGHTS_FILE
from workers.models.sources import DESCRIPTION_FILES, MODEL_FILES
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
class CheckedModel:
    """What a registry says of a model."""

    context_tokens: int
    parameters: int


def check_folder(folder: Path) -> CheckedModel:
    """Read everything but the tensors. Raises ModelInvalid."""
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    if missing:
        raise ModelInvalid(
            [Finding(f"/{name}", "missing_file", "The file is missing.") for name in missing]
        )
    records = {name: _record(folder / name) for name in DESCRIPTION_FILES}
    config = _config(records["config.json"])
    vocabulary = _described("vocab.json", lambda: _vocabulary(folder / "vocab.json", config))
    _described("chat.json", lambda: read_chat(folder / "chat.json", vocabulary))
    return CheckedModel(config.max_position_embeddings, _weights(folder / WEIGHTS_FILE, config))


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
    """Number of parameters of a file that fits the description."""
    wanted = expected_shapes(config)
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            names = set(file.keys())
            slices = {name: file.get_slice(name) for name in sorted(names)}
            found = {n: (tuple(s.get_shape()), str(s.get_dtype())) for n, s in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        message = f"The file is no safetensors file: {error}"[:300]
        raise ModelInvalid([Finding(f"/{WEIGHTS_FILE}", "malformed", message)]) from error
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    findings = _differences(wanted, found, tied)
    if findings:
        raise ModelInvalid(findings[:LISTED_MAX])
    return sum(math.prod(shape) for name, shape in wanted.items() if name not in tied)


def _differences(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[tuple[int, ...], str]],
    optional: set[str],
) -> list[Finding]:
    where = f"/{WEIGHTS_FILE}"
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
        shape, dtype = found[name]
        if shape != wanted[name]:
            message = f"{name} has the shape {shape}, config.json gives {wanted[name]}."
            findings.append(Finding(where, "bad_shape", message))
        if dtype not in DTYPES:
            message = f"{name} has the type {dtype}."
            findings.append(
                Finding(where, "bad_dtype", message, f"Use {', '.join(sorted(DTYPES))}.")
            )
    return findings


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a decoder."""
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config.vocab_size, width),
    }
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.o_proj.weight": (width, config.query_width),
    }
    outputs = {"q": config.query_width, "k": config.key_width, "v": config.key_width}
    for part, rows in outputs.items():
        shapes[f"self_attn.{part}_proj.weight"] = (rows, width)
        if config.has_qkv_bias:
            shapes[f"self_attn.{part}_proj.bias"] = (rows,)
    if config.has_out_bias:
        shapes["self_attn.o_proj.bias"] = (width,)
    if config.has_head_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes
