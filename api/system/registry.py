"""Models of the registry: the built-in folders' configurations, read without torch."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from domain.model_defaults import with_defaults
from venusrl.models.checkpoints import BaseModelInfo

BUILTIN: Final = Path(__file__).resolve().parents[2] / "workers" / "models" / "builtin"


@lru_cache(maxsize=1)
def models() -> dict[str, BaseModelInfo]:
    """All models by name."""
    found = {}
    for config in sorted(BUILTIN.glob("*/config.json")):
        read = json.loads(config.read_text())
        name = config.parent.name
        chat = json.loads((config.parent / "chat.json").read_text())
        found[name] = info_of(name, read, chat)
    return found


def info_of(name: str, config: Mapping[str, Any], chat: Mapping[str, Any]) -> BaseModelInfo:
    """What a model's configuration and its description of conversations say of it."""
    config = _whole(config)
    return BaseModelInfo(
        name=name,
        context_tokens=int(config["max_position_embeddings"]),
        parameters=_size(config),
        renderer=str(chat["format"]),
        drops_reasoning=_drops_reasoning(chat.get("reasoning")),
    )


def _whole(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with what it leaves to its architecture."""
    architecture = str((config.get("architectures") or [""])[0])
    whole = with_defaults(architecture, config)
    if whole.get("num_key_value_heads") is None:
        whole["num_key_value_heads"] = whole["num_attention_heads"]
    if whole.get("head_dim") is None:
        whole["head_dim"] = whole["hidden_size"] // whole["num_attention_heads"]
    return whole


def _drops_reasoning(reasoning: object) -> bool:
    """As `workers/models/reasoning.py` reads it; leaving out is what published templates do."""
    return isinstance(reasoning, Mapping) and reasoning.get("history", "drop") == "drop"


def _size(config: Mapping[str, Any]) -> int:
    """Parameters of a Llama-like decoder from its configuration."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config["head_dim"]
    heads = config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    block = width * head * heads + config["num_attention_heads"] * head * width
    block += 3 * width * inner + 2 * width
    has_bias, family = config.get("attention_bias", False), config.get("model_type")
    block += head * heads if has_bias or family == "qwen2" else 0
    block += width if has_bias else 0
    block += 2 * head if family == "qwen3" else 0
    tables = 1 if config.get("tie_word_embeddings") else 2
    return int(config["num_hidden_layers"] * block + tables * config["vocab_size"] * width + width)
