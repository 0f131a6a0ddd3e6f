"""Architecture numbers of a model folder: `config.json`, in the key names of published Llamas."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ARCHITECTURE: Final = "LlamaForCausalLM"
"""Names and layout of the tensors follow it, so that an export needs no conversion."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Numbers of a decoder. `max_position_embeddings` is the context in tokens, prompt included."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        """Heads divide the width, and half a head is rotated against the other half."""
        assert self.hidden_size % self.num_attention_heads == 0
        assert self.head_dim % 2 == 0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


def write_config(config: ModelConfig, path: Path) -> None:
    """Write `config.json`, readable by `transformers` as a Llama."""
    record = asdict(config) | {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_config(path: Path) -> ModelConfig:
    """Read `config.json`; keys that this architecture does not use are ignored."""
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["architectures"] == [ARCHITECTURE], "unknown architecture"
    assert record["num_key_value_heads"] == record["num_attention_heads"], "grouped heads"
    return ModelConfig(
        vocab_size=int(record["vocab_size"]),
        hidden_size=int(record["hidden_size"]),
        intermediate_size=int(record["intermediate_size"]),
        num_hidden_layers=int(record["num_hidden_layers"]),
        num_attention_heads=int(record["num_attention_heads"]),
        max_position_embeddings=int(record["max_position_embeddings"]),
        rope_theta=float(record["rope_theta"]),
        rms_norm_eps=float(record["rms_norm_eps"]),
        tie_word_embeddings=bool(record["tie_word_embeddings"]),
    )
