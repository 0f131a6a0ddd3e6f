"""Folders that `transformers` wrote: our decoder gives its log-probabilities."""

from pathlib import Path

import pytest
import torch

from tests.support import requires
from tests.support.engines import reference_logprobs
from tests.support.published_models import KINDS, published, published_logprobs
from workers.models.check import check_folder, expected_shapes
from workers.models.config import Architecture, read_config, write_config
from workers.models.folder import (
    INDEX_FILE,
    WeightsUnreadable,
    load_decoder,
    load_weights,
    read_folder,
    save_folder,
    save_weights,
    tied_state,
)

pytestmark = requires("reference")

IDS = tuple((7 * i * i + i) % 20 for i in range(80))
"""Longer than the original context of the scaled positions."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_published_folder_gives_the_log_probabilities_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    model = published(kind, tmp_path)
    ours = reference_logprobs(load_decoder(read_folder(tmp_path)), IDS)
    assert torch.allclose(ours, published_logprobs(model, IDS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_saved_by_us_is_read_alike_by_transformers(tmp_path: Path, kind: str) -> None:
    import transformers

    published(kind, tmp_path / "theirs")
    folder = read_folder(tmp_path / "theirs")
    model = load_decoder(folder)
    save_folder(tmp_path / "ours", model, folder.vocabulary, {})
    assert read_config(tmp_path / "ours" / "config.json") == folder.config
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert torch.allclose(
        reference_logprobs(model, IDS), published_logprobs(read, IDS), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_an_architecture_is_expected_by_the_check(
    tmp_path: Path, kind: str
) -> None:
    published(kind, tmp_path)
    folder = read_folder(tmp_path)
    held = load_decoder(folder).state_dict()
    assert {name: tuple(t.shape) for name, t in held.items()} == expected_shapes(folder.config)
    assert check_folder(tmp_path).context_tokens == folder.config.max_position_embeddings


def test_weights_in_several_files_are_those_in_one(tmp_path: Path) -> None:
    published("qwen3", tmp_path / "one")
    published("qwen3", tmp_path / "many", is_sharded=True)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    one = load_weights(read_folder(tmp_path / "one").weights_path)
    many = load_weights(read_folder(tmp_path / "many").weights_path)
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_a_missing_foreign_or_escaping_part_is_refused(tmp_path: Path) -> None:
    published("qwen2", tmp_path, is_sharded=True)
    index = tmp_path / INDEX_FILE
    part = sorted(tmp_path.glob("model-*.safetensors"))[0]
    held, written = part.read_bytes(), index.read_text()
    part.unlink()
    with pytest.raises(WeightsUnreadable, match=part.name):
        load_weights(index)
    save_weights({"other": torch.ones(1)}, part)
    with pytest.raises(WeightsUnreadable, match="disagree"):
        load_weights(index)
    part.write_bytes(held)
    index.write_text(written.replace(part.name, f"../{part.name}"))
    with pytest.raises(WeightsUnreadable, match="leads out"):
        load_weights(index)
    index.write_text("{}")
    with pytest.raises(WeightsUnreadable, match="no index"):
        load_weights(index)


def test_a_tied_model_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    published("llama-tied", tmp_path)
    folder = read_folder(tmp_path)
    state = load_weights(folder.weights_path)
    assert "lm_head.weight" not in state, "a published tied model leaves its head out"
    state["lm_head.weight"] = state["model.embed_tokens.weight"] + 1e-3
    with pytest.raises(WeightsUnreadable, match="tied"):
        tied_state(folder.config, state)


def test_a_configuration_survives_being_written(tmp_path: Path) -> None:
    published("llama-grouped", tmp_path)
    config = read_config(tmp_path / "config.json")
    write_config(config, tmp_path / "config.json")
    assert read_config(tmp_path / "config.json") == config
    assert (config.architecture, config.head_dim) == (Architecture.LLAMA, 12)
    assert config.rope_scaling is not None
