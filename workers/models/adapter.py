"""Low-rank adapters in PEFT's folder: `adapter_config.json` and `adapter_model.safetensors`.

An adapter adds `scale * B (A x)` to projections of a base model (Hu et al. 2021, equation 3). As with
models, what a folder asks for and is not computed here is refused with a cause, never ignored.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from domain.errors import VenusError
from workers.models.config import ModelConfig
from workers.models.folder import weights_sha
from workers.models.shapes import expected_shapes

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
"""The names that PEFT writes."""

ATTENTION_TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_TARGETS: Final = ("gate_proj", "up_proj", "down_proj")
TARGETS: Final = {name: f"self_attn.{name}" for name in ATTENTION_TARGETS} | {
    name: f"mlp.{name}" for name in MLP_TARGETS
}
"""Projections that may be adapted, and where they stand in a layer."""

RANK_MAX: Final = 512
"""Above every published adapter; the product of two such matrices is no longer cheap."""

IRRELEVANT: Final = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout",
        "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision",
        "task_type",
    }
)  # fmt: skip
"""Keys without a part in what a trained adapter computes, or read by name below."""

READ: Final = frozenset({"r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights"})
"""Keys that are used; every other one must be off."""

PLAIN_STARTS: Final = (True, False, None, "gaussian")
"""Ways to initialise an adapter that leave the base model as it is."""

TENSOR_NAME: Final = re.compile(
    r"base_model\.model\.model\.layers\.(\d{1,4})\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight"
)


class AdapterFault(StrEnum):
    """Closed set of reasons why an adapter is refused."""

    UNREADABLE = "unreadable"
    UNSUPPORTED_OPTION = "unsupported_option"
    BAD_NUMBER = "bad_number"
    UNSUPPORTED_TARGET = "unsupported_target"
    MISSING_TENSOR = "missing_tensor"
    BAD_SHAPE = "bad_shape"


class AdapterRefused(VenusError):
    """The folder is no adapter that can be served over this base model."""

    code = "adapter_refused"

    def __init__(self, fault: AdapterFault, detail: str) -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(f"{fault.value}: {detail}")
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of one projection: `a` [rank, in], `b` [out, rank]."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that was read; `sha` is its identity, numbers and scale together."""

    rank: int
    scale: float
    sha: str
    layers: tuple[Mapping[str, Pair], ...]
    """Per layer, the adapted projections by name (`q_proj`, ...)."""


def read_adapter(folder: Path, config: ModelConfig) -> Adapter:
    """Read an adapter for a base model. Raises AdapterRefused."""
    try:
        record = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = load_file(str(folder / WEIGHTS_FILE), device="cpu")
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterRefused(AdapterFault.UNREADABLE, str(error)[:300]) from error
    if not isinstance(record, dict):
        raise AdapterRefused(AdapterFault.UNREADABLE, f"{CONFIG_FILE} is no JSON object")
    rank, scale = _numbers(record)
    layers = _layers(tensors, config, rank)
    named = record.get("target_modules")
    found = set(layers[0])
    if isinstance(named, list) and {str(one).rsplit(".", 1)[-1] for one in named} != found:
        detail = f"{sorted(map(str, named))} are named, {sorted(found)} are there"
        raise AdapterRefused(AdapterFault.MISSING_TENSOR, detail[:300])
    digest = hashlib.sha256(f"{rank}\0{scale!r}\0{weights_sha(tensors)}".encode())
    return Adapter(rank, scale, digest.hexdigest(), layers)


def _numbers(record: Mapping[str, Any]) -> tuple[int, float]:
    """Rank and scale: alpha over the rank, or over its root (Kalajdzievski 2023)."""
    if record.get("peft_type") != "LORA":
        detail = f"peft_type is {str(record.get('peft_type'))[:100]}"
        raise AdapterRefused(AdapterFault.UNSUPPORTED_OPTION, detail)
    on = [key for key in sorted(record.keys() - IRRELEVANT - READ) if record[key]]
    others = [key for key in on if (key, record[key]) != ("bias", "none")]
    if record.get("init_lora_weights") not in PLAIN_STARTS:
        others.append("init_lora_weights")
    if others:
        detail = f"{', '.join(others)[:200]} cannot be computed here"
        raise AdapterRefused(AdapterFault.UNSUPPORTED_OPTION, detail)
    rank, alpha = record.get("r"), record.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= RANK_MAX:
        raise AdapterRefused(AdapterFault.BAD_NUMBER, f"r must be 1 to {RANK_MAX}")
    if not isinstance(alpha, int | float) or not 0 < alpha < float("inf"):
        raise AdapterRefused(AdapterFault.BAD_NUMBER, "lora_alpha must be above 0")
    return rank, float(alpha / (rank**0.5 if record.get("use_rslora") else rank))


def _layers(
    tensors: Mapping[str, Tensor], config: ModelConfig, rank: int
) -> tuple[Mapping[str, Pair], ...]:
    """Both matrices of every adapted projection of every layer, in the shapes of the base model."""
    sides: dict[tuple[int, str, str], Tensor] = {}
    for name, tensor in tensors.items():
        match = TENSOR_NAME.fullmatch(name)
        if match is None or match[2] not in TARGETS or int(match[1]) >= config.num_hidden_layers:
            raise AdapterRefused(AdapterFault.UNSUPPORTED_TARGET, f"{name[:200]} has no place")
        sides[int(match[1]), match[2], match[3]] = tensor
    targets = sorted({target for _, target, _ in sides}, key=list(TARGETS).index)
    if not targets:
        raise AdapterRefused(AdapterFault.MISSING_TENSOR, "the adapter is empty")
    shapes = expected_shapes(config)
    layers = []
    for at in range(config.num_hidden_layers):
        pairs = {}
        for target in targets:
            outputs, inputs = shapes[f"model.layers.{at}.{TARGETS[target]}.weight"]
            wanted = {"A": (rank, inputs), "B": (outputs, rank)}
            a, b = (_side(sides, (at, target, side), wanted[side]) for side in "AB")
            pairs[target] = Pair(a, b)
        layers.append(pairs)
    return tuple(layers)


def _side(
    sides: Mapping[tuple[int, str, str], Tensor],
    key: tuple[int, str, str],
    wanted: tuple[int, int],
) -> Tensor:
    where = f"lora_{key[2]} of {key[1]} in layer {key[0]}"
    if key not in sides:
        raise AdapterRefused(AdapterFault.MISSING_TENSOR, f"there is no {where}")
    if tuple(sides[key].shape) != wanted:
        detail = f"{where} is {tuple(sides[key].shape)}, it must be {wanted}"
        raise AdapterRefused(AdapterFault.BAD_SHAPE, detail)
    return sides[key]
