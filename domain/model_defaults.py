"""Numbers that a `config.json` leaves out, as `transformers` means them, by architecture.

Whoever reads such a file takes them from here: the engine, the trainer, and the gateway, which says how long
a model's context is.
"""

from collections.abc import Mapping
from typing import Any, Final

_QWEN: Final[Mapping[str, int]] = {
    "vocab_size": 151_936,
    "hidden_size": 4_096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}

MODEL_DEFAULTS: Final[Mapping[str, Mapping[str, int]]] = {
    "LlamaForCausalLM": {
        "vocab_size": 32_000,
        "hidden_size": 4_096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2_048,
    },
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": {**_QWEN, "head_dim": 128},
}
"""Key heads and width of a head that are not named here follow from the other numbers."""

NORM_EPS_DEFAULT: Final = 1e-6
"""`rms_norm_eps` of every architecture above."""


def with_defaults(architecture: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the numbers that it leaves to its architecture; what it says stays."""
    defaults = MODEL_DEFAULTS.get(architecture, {})
    return {**defaults, "rms_norm_eps": NORM_EPS_DEFAULT, **record}
