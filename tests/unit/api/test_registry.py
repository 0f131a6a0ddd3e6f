"""What the gateway says of a model from its configuration."""

from typing import Any

import pytest

from api.system.registry import info_of

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 20,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize("spelling", [{}, {"num_key_value_heads": None, "head_dim": None}])
def test_numbers_that_a_configuration_leaves_out_are_those_of_its_architecture(
    spelling: dict[str, Any],
) -> None:
    info = info_of("mine", CONFIG | spelling, {"format": "chatml"})
    whole = CONFIG | {"num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 2048}
    assert info == info_of("mine", whole, {"format": "chatml"})
    assert info.context_tokens == 2048
