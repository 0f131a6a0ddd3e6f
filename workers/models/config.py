"""Architecture numbers of a model folder: `config.json`, in the key names of published models.

What a folder asks for and this decoder does not compute is refused with a cause, never ignored: an
option that is silently left out gives wrong log-probabilities, not an error.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from domain.errors import VenusError
from domain.model_defaults import with_defaults


class Architecture(StrEnum):
    """Decoders that are computed here; names and layout of their tensors follow `transformers`."""

    LLAMA = "LlamaForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"
    QWEN3 = "Qwen3ForCausalLM"

    @property
    def model_type(self) -> str:
        """The name that `transformers` has for the family."""
        return self.name.lower()


class ConfigFault(StrEnum):
    """Closed set of reasons why a `config.json` is refused."""

    MALFORMED = "malformed"
    UNSUPPORTED_MODEL = "unsupported_model"
    BAD_NUMBER = "bad_number"
    BAD_VALUE = "bad_value"
    UNKNOWN_OPTION = "unknown_option"
    CONTRADICTION = "contradiction"
    """Two keys for the same thing that say different things."""


class ConfigRefused(VenusError):
    """The description asks for something else than this decoder; `pointer` says where."""

    code = "config_refused"

    def __init__(self, fault: ConfigFault, key: str, message: str, hint: str = "") -> None:
        """Keep the closed reason and the key beside the sentence for people."""
        super().__init__(f"{key}: {message}")
        self.fault = fault
        self.key = key
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Long-context scaling of rotary positions as Llama 3.1 published it (rope type `llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Numbers of a decoder. `max_position_embeddings` is the context in tokens, prompt included.

    0 for `num_key_value_heads` and `head_dim` means the usual: as many as there are query heads,
    and the width divided by them.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    num_key_value_heads: int = 0
    head_dim: int = 0
    architecture: Architecture = Architecture.LLAMA
    attention_bias: bool = False
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        """Heads are shared evenly, and half a head is rotated against the other half."""
        if not self.num_key_value_heads:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if not self.head_dim:
            assert self.hidden_size % self.num_attention_heads == 0
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        assert self.num_attention_heads % self.num_key_value_heads == 0
        assert self.head_dim % 2 == 0

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_key_value_heads * self.head_dim

    @property
    def queries_per_key(self) -> int:
        """Query heads that share one key head (grouped-query attention, Ainslie et al. 2023)."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def has_qkv_bias(self) -> bool:
        """Whether query, key and value projections add a bias; Qwen2's always do."""
        return self.attention_bias or self.architecture is Architecture.QWEN2

    @property
    def has_out_bias(self) -> bool:
        """Whether the output projection of attention adds a bias."""
        return self.attention_bias

    @property
    def has_head_norm(self) -> bool:
        """Whether every query and key head is normalised before it is rotated (Qwen3)."""
        return self.architecture is Architecture.QWEN3


FIXED: Final[Mapping[str, tuple[object, ...]]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "pretraining_tp": (1, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1, None),
    "attention_dropout": (0, None),
    "is_decoder": (True, False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
}
"""Options that this decoder computes in one way; any other value is refused."""

IRRELEVANT: Final = frozenset(
    {
        "_name_or_path", "architectures", "bos_token_id", "chunk_size_feed_forward", "dtype",
        "eos_token_id", "initializer_range", "layer_types", "max_window_layers", "model_type",
        "output_attentions", "output_hidden_states", "pad_token_id", "return_dict",
        "rope_parameters", "rope_scaling", "sliding_window", "tokenizer_class", "torch_dtype",
        "transformers_version", "use_cache", "problem_type", "id2label", "label2id",
    }
)  # fmt: skip
"""Keys without a part in the arithmetic, or read by name below."""

READ: Final = frozenset(
    {
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
        "rope_theta", "rms_norm_eps", "tie_word_embeddings", "attention_bias",
    }
)  # fmt: skip
"""Keys that become numbers of a `ModelConfig`."""

NUMBERS: Final[Mapping[str, int]] = {
    "vocab_size": 1_000_000,
    "hidden_size": 65_536,
    "intermediate_size": 262_144,
    "num_hidden_layers": 512,
    "num_attention_heads": 1_024,
    "max_position_embeddings": 1_000_000,
}
"""Largest value of each number of `config.json`; far above any model, far below an overflow."""

OPTIONAL_NUMBERS: Final[Mapping[str, int]] = {"num_key_value_heads": 1_024, "head_dim": 4_096}
"""As above, for what older configurations leave to the usual value."""

REAL_MAX: Final = 1e12
"""Above every published rotary base; a larger one is a typing error."""

DEFAULT_ROPE_THETA: Final = 10_000.0
"""The base of Su et al. 2021, which configurations without one mean."""


def write_config(config: ModelConfig, path: Path) -> None:
    """Write `config.json`, readable by `transformers` as a model of its architecture."""
    record = asdict(config) | {
        "architectures": [config.architecture.value],
        "model_type": config.architecture.model_type,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    del record["architecture"], record["rope_scaling"]
    if config.architecture is Architecture.LLAMA:
        record["mlp_bias"] = False
    if config.architecture is Architecture.QWEN2:
        del record["attention_bias"]
    if config.rope_scaling is not None:
        record["rope_scaling"] = asdict(config.rope_scaling) | {"rope_type": "llama3"}
    path.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_config(path: Path) -> ModelConfig:
    """Read `config.json`. Raises ConfigRefused for what this decoder does not compute."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigRefused(ConfigFault.MALFORMED, "", f"no JSON: {error}"[:300]) from error
    if not isinstance(record, dict):
        raise ConfigRefused(ConfigFault.MALFORMED, "", "no JSON object")
    return parse_config(record)


def parse_config(record: Mapping[str, Any]) -> ModelConfig:
    """The numbers of a `config.json`, or the first reason why they cannot be used."""
    architecture = _architecture(record)
    _refuse_other_options(record, architecture)
    record = with_defaults(architecture, record)
    numbers = {name: _whole(record, name, largest) for name, largest in NUMBERS.items()}
    optional = {
        name: _whole(record, name, largest) if record.get(name) is not None else 0
        for name, largest in OPTIONAL_NUMBERS.items()
    }
    _check_heads(numbers, optional)
    theta, scaling = _rope(record)
    return ModelConfig(
        **numbers,
        **optional,
        rope_theta=theta,
        rms_norm_eps=_real(record, "rms_norm_eps"),
        tie_word_embeddings=_flag(record, "tie_word_embeddings"),
        attention_bias=_flag(record, "attention_bias") and architecture is not Architecture.QWEN2,
        architecture=architecture,
        rope_scaling=scaling,
    )


def _architecture(record: Mapping[str, Any]) -> Architecture:
    named = record.get("architectures")
    known = ", ".join(one.value for one in Architecture)
    if not isinstance(named, list) or len(named) != 1 or named[0] not in list(Architecture):
        message = f"The architecture {str(named)[:100]} is not supported."
        raise ConfigRefused(
            ConfigFault.UNSUPPORTED_MODEL, "architectures", message, f"Supported: {known}."
        )
    return Architecture(named[0])


def _refuse_other_options(record: Mapping[str, Any], architecture: Architecture) -> None:
    for key, allowed in FIXED.items():
        if key in record and record[key] not in allowed:
            message = f"{str(record[key])[:100]} is not supported."
            hint = f"It must be {json.dumps(allowed[0])}."
            raise ConfigRefused(ConfigFault.UNSUPPORTED_MODEL, key, message, hint)
    kinds = record.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or set(kinds) - {"full_attention"}):
        message = "Layers with other than full attention are not supported."
        raise ConfigRefused(ConfigFault.UNSUPPORTED_MODEL, "layer_types", message)
    if architecture is Architecture.QWEN2 and record.get("attention_bias") is False:
        message = "This architecture always adds its biases."
        raise ConfigRefused(ConfigFault.BAD_VALUE, "attention_bias", message)
    for key in sorted(record.keys() - FIXED.keys() - IRRELEVANT - READ):
        if record[key] is None or record[key] is False:
            continue  # an option that is off
        message = "The option is not known; it may change what the model computes."
        raise ConfigRefused(ConfigFault.UNKNOWN_OPTION, key[:100], message)


def _check_heads(numbers: Mapping[str, int], optional: Mapping[str, int]) -> None:
    heads, width = numbers["num_attention_heads"], numbers["hidden_size"]
    shared = optional["num_key_value_heads"] or heads
    if heads % shared:
        message = f"{heads} query heads are not shared evenly by {shared} key heads."
        raise ConfigRefused(ConfigFault.BAD_NUMBER, "num_key_value_heads", message)
    if not optional["head_dim"] and width % heads:
        message = f"{width} does not divide into {heads} heads."
        raise ConfigRefused(ConfigFault.BAD_NUMBER, "hidden_size", message, "Or give head_dim.")
    if (optional["head_dim"] or width // heads) % 2:
        key = "head_dim" if optional["head_dim"] else "hidden_size"
        raise ConfigRefused(ConfigFault.BAD_NUMBER, key, "The width of a head must be even.")


def _rope(record: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` or from the older pair of keys.

    `transformers` takes `rope_scaling` where both say something; two that say different things are refused.
    """
    said = {key: _rope_of(record, key) for key in ("rope_scaling", "rope_parameters")}
    given = [one for one in said.values() if one is not None]
    if not given:
        return _theta(record), None
    if given[0] != given[-1]:
        message = "It says something else than rope_parameters."
        raise ConfigRefused(
            ConfigFault.CONTRADICTION, "rope_scaling", message, "Leave one of the two out."
        )
    return given[0]


def _rope_of(record: Mapping[str, Any], key: str) -> tuple[float, RopeScaling | None] | None:
    """What one of the two keys says; nothing where it is absent or empty."""
    options = record.get(key)
    if options is None or options == {}:
        return None
    if not isinstance(options, Mapping):
        raise ConfigRefused(ConfigFault.BAD_VALUE, key, "It must be an object.")
    theta = _theta(options if "rope_theta" in options else record)
    kind = options.get("rope_type", options.get("type", "default"))
    if kind not in ("default", "llama3"):
        message = f"Positions of the type {str(kind)[:100]} are not supported."
        raise ConfigRefused(ConfigFault.UNSUPPORTED_MODEL, key, message, "default or llama3.")
    names = set(RopeScaling.__slots__) if kind == "llama3" else set()
    other = options.keys() - names - {"rope_theta", "rope_type", "type"}
    if set(other) - {"partial_rotary_factor"} or options.get("partial_rotary_factor", 1) != 1:
        message = f"{', '.join(sorted(other))[:200]} is not known for this type."
        raise ConfigRefused(ConfigFault.UNKNOWN_OPTION, key, message)
    if kind == "default":
        return theta, None
    longest = "original_max_position_embeddings"
    return theta, _scaling({longest: record["max_position_embeddings"], **options})


def _scaling(options: Mapping[str, Any]) -> RopeScaling:
    scaling = RopeScaling(
        _real(options, "factor"),
        _real(options, "low_freq_factor"),
        _real(options, "high_freq_factor"),
        _whole(options, "original_max_position_embeddings", NUMBERS["max_position_embeddings"]),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        message = "It must be above low_freq_factor."
        raise ConfigRefused(ConfigFault.BAD_NUMBER, "high_freq_factor", message)
    return scaling


def _theta(record: Mapping[str, Any]) -> float:
    return DEFAULT_ROPE_THETA if record.get("rope_theta") is None else _real(record, "rope_theta")


def _whole(record: Mapping[str, Any], key: str, largest: int) -> int:
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest:
        return value
    raise _bad_number(record, key, f"It must be 1 to {largest}.")


def _real(record: Mapping[str, Any], key: str) -> float:
    value: object = record.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < REAL_MAX:
        return float(value)
    raise _bad_number(record, key, "It must be above 0.")


def _bad_number(record: Mapping[str, Any], key: str, wanted: str) -> ConfigRefused:
    message = wanted if key in record else f"It is missing. {wanted}"
    return ConfigRefused(ConfigFault.BAD_NUMBER, key, message)


def _flag(record: Mapping[str, Any], key: str) -> bool:
    value = record.get(key, False)
    if isinstance(value, bool):
        return value
    raise ConfigRefused(ConfigFault.BAD_VALUE, key, "Say true or false.")
