"""`config.json`: what is not computed is refused with its key and a closed reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import requires
from workers.models.config import (
    NUMBERS,
    Architecture,
    ConfigFault,
    ConfigRefused,
    RopeScaling,
    parse_config,
    read_config,
)

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 20,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}

SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def test_what_a_configuration_leaves_out_has_the_usual_value() -> None:
    config = parse_config(PLAIN)
    assert (config.num_key_value_heads, config.head_dim) == (4, 8)
    assert (config.rope_theta, config.tie_word_embeddings) == (10_000.0, False)
    assert config.rope_scaling is None


def test_old_and_new_spellings_of_positions_mean_the_same() -> None:
    old = parse_config(PLAIN | {"rope_theta": 5e5, "rope_scaling": SCALED})
    new = parse_config(PLAIN | {"rope_parameters": SCALED | {"rope_theta": 5e5}})
    assert old == new
    assert old.rope_scaling is not None


@pytest.mark.parametrize("spare", [{}, {"rope_type": "default"}, SCALED])
def test_two_spellings_of_positions_that_differ_are_refused(spare: dict[str, Any]) -> None:
    def both(parameters: object, scaling: object) -> RopeScaling | None:
        given = {"rope_parameters": parameters, "rope_scaling": scaling}
        return parse_config(PLAIN | given).rope_scaling

    other = SCALED | {"factor": 4.0}
    if spare:
        with pytest.raises(ConfigRefused) as refused:
            both(spare, other)
        assert (refused.value.key, refused.value.fault) == (
            "rope_scaling",
            ConfigFault.CONTRADICTION,
        )
    assert both(spare, spare) == both(spare, None) == both(spare, {}) == both({}, spare)


def test_a_base_that_only_one_spelling_has_is_a_contradiction() -> None:
    given = {"rope_parameters": SCALED | {"rope_theta": 5e5}, "rope_scaling": SCALED}
    with pytest.raises(ConfigRefused, match="rope_parameters"):
        parse_config(PLAIN | given)
    assert parse_config(PLAIN | given | {"rope_theta": 5e5}).rope_theta == 5e5


@requires("reference")
@pytest.mark.parametrize("architecture", Architecture)
def test_what_a_configuration_leaves_out_is_what_transformers_means(
    architecture: Architecture,
) -> None:
    import transformers

    theirs = getattr(transformers, architecture.value.replace("ForCausalLM", "Config"))()
    ours = parse_config({"architectures": [architecture.value]})
    names = [
        *NUMBERS,
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
    ]
    assert {n: getattr(ours, n) for n in names} == {n: getattr(theirs, n) for n in names}
    usual = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == getattr(theirs, "head_dim", usual)
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


def test_scaled_positions_start_from_the_whole_context_where_nothing_else_is_said() -> None:
    scaled = {k: v for k, v in SCALED.items() if k != "original_max_position_embeddings"}
    read = parse_config(PLAIN | {"rope_scaling": scaled}).rope_scaling
    assert read is not None
    assert read.original_max_position_embeddings == 64


def test_a_number_that_is_not_there_is_called_missing() -> None:
    scaled = {k: v for k, v in SCALED.items() if k != "factor"}
    with pytest.raises(ConfigRefused, match="missing"):
        parse_config(PLAIN | {"rope_scaling": scaled})


def test_an_unknown_option_that_is_off_changes_nothing() -> None:
    assert parse_config(PLAIN | {"use_mrope": False, "of_tomorrow": None}) == parse_config(PLAIN)


def test_each_architecture_has_its_norms_and_biases() -> None:
    def parts(name: str, **options: object) -> tuple[bool, bool, bool]:
        heads = {"num_key_value_heads": 4, "head_dim": 8}
        config = parse_config(PLAIN | heads | {"architectures": [name]} | options)
        return config.has_qkv_bias, config.has_out_bias, config.has_head_norm

    assert parts("LlamaForCausalLM") == (False, False, False)
    assert parts("LlamaForCausalLM", attention_bias=True) == (True, True, False)
    assert parts("Qwen2ForCausalLM") == (True, False, False)
    assert parts("Qwen3ForCausalLM") == (False, False, True)


@pytest.mark.parametrize(
    ("changes", "key", "fault"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "architectures", "unsupported_model"),
        ({"architectures": None}, "architectures", "unsupported_model"),
        ({"hidden_act": "gelu"}, "hidden_act", "unsupported_model"),
        ({"mlp_bias": True}, "mlp_bias", "unsupported_model"),
        ({"use_sliding_window": True}, "use_sliding_window", "unsupported_model"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types", "unsupported_model"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_scaling", "unsupported_model"),
        ({"rope_parameters": {"beta_fast": 32}}, "rope_parameters", "unknown_option"),
        ({"rope_scaling": SCALED | {"factor": 0}}, "factor", "bad_number"),
        ({"rope_scaling": SCALED | {"low_freq_factor": 4.0}}, "high_freq_factor", "bad_number"),
        ({"quantization_config": {"bits": 4}}, "quantization_config", "unknown_option"),
        ({"logit_scale": 2.0}, "logit_scale", "unknown_option"),
        ({"logit_scale": 0}, "logit_scale", "unknown_option"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "bad_number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "bad_number"),
        ({"vocab_size": True}, "vocab_size", "bad_number"),
        ({"hidden_size": 1e308}, "hidden_size", "bad_number"),
        ({"hidden_size": 30}, "hidden_size", "bad_number"),
        ({"head_dim": 7}, "head_dim", "bad_number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps", "bad_number"),
        ({"rope_theta": -1.0}, "rope_theta", "bad_number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings", "bad_value"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "attention_bias": False},
            "attention_bias",
            "bad_value",
        ),
    ],
)
def test_what_this_decoder_does_not_compute_is_refused(
    changes: dict[str, Any], key: str, fault: str
) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_config(PLAIN | changes)
    assert (refused.value.key, refused.value.fault) == (key, ConfigFault(fault))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigRefused) as refused:
        read_config(path)
    assert refused.value.fault is ConfigFault.MALFORMED


def test_every_architecture_has_the_family_name_of_transformers(tmp_path: Path) -> None:
    for architecture in Architecture:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"architectures": [architecture.value]}))
        assert read_config(path).architecture is architecture
        assert architecture.value.lower().startswith(architecture.model_type)
