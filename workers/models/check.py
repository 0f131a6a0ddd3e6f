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
from workers.models.config import ARCHITECTURE, ModelConfig, read_config
from workers.models.folder import WEIGHTS_FILE
from workers.models.sources import DESCRIPTION_FILES, MODEL_FILES
from workers.models.vocab import Vocabulary, read_vocab

DESCRIPTION_BYTES_MAX: Final = 4 << 20
"""Of one JSON file: a vocabulary of a hundred thousand names fits."""

NUMBERS: Final[Mapping[str, int]] = {
    "vocab_size": 1_000_000,
    "hidden_size": 65_536,
    "intermediate_size": 262_144,
    "num_hidden_layers": 512,
    "num_attention_heads": 1_024,
    "num_key_value_heads": 1_024,
    "max_position_embeddings": 1_000_000,
}
"""Largest value of each number of `config.json`; far above any model, far below an overflow."""

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
    config = _config(folder / "config.json", records["config.json"])
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


def _config(path: Path, record: Mapping[str, Any]) -> ModelConfig:
    if record.get("architectures") != [ARCHITECTURE]:
        message = f"The architecture {str(record.get('architectures'))[:100]} is not supported."
        finding = Finding(
            "/config.json/architectures",
            "unsupported_model",
            message,
            f"Supported: {ARCHITECTURE}.",
        )
        raise ModelInvalid([finding])
    findings = [
        Finding(f"/config.json/{name}", "bad_number", f"It must be 1 to {largest}.")
        for name, largest in NUMBERS.items()
        if not _is_whole(record.get(name), largest)
    ]
    for name in ("rope_theta", "rms_norm_eps"):
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            findings.append(Finding(f"/config.json/{name}", "bad_number", "It must be above 0."))
    if not isinstance(record.get("tie_word_embeddings"), bool):
        findings.append(
            Finding("/config.json/tie_word_embeddings", "bad_value", "Say true or false.")
        )
    if findings:
        raise ModelInvalid(findings)
    heads, width = record["num_attention_heads"], record["hidden_size"]
    if record["num_key_value_heads"] != heads:
        findings.append(
            Finding(
                "/config.json/num_key_value_heads",
                "unsupported_model",
                "Grouped key-value heads are not supported.",
                f"It must be {heads}, as num_attention_heads.",
            )
        )
    if width % heads or (width // heads) % 2:
        message = f"{width} does not divide into {heads} heads of an even width."
        findings.append(Finding("/config.json/hidden_size", "bad_number", message))
    if record.get("head_dim", width // heads) != width // heads:
        message = f"It must be {width // heads}, hidden_size by num_attention_heads."
        findings.append(Finding("/config.json/head_dim", "unsupported_model", message))
    if findings:
        raise ModelInvalid(findings)
    return read_config(path)


def _is_whole(value: object, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


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
    width, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config.vocab_size, width),
    }
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{at}.self_attn.{part}.weight"] = (width, width)
        shapes[f"{at}.mlp.gate_proj.weight"] = (inner, width)
        shapes[f"{at}.mlp.up_proj.weight"] = (inner, width)
        shapes[f"{at}.mlp.down_proj.weight"] = (width, inner)
        shapes[f"{at}.input_layernorm.weight"] = (width,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (width,)
    return shapes
