"""Model folders: round trips, identity of weights, built-in models."""

from pathlib import Path

import pytest
import torch

from domain.errors import NotFound
from tests.support.engines import decoder, model_folder
from workers.models.folder import (
    builtin_names,
    builtin_path,
    file_checksum,
    load_decoder,
    load_weights,
    read_folder,
    save_weights,
    weights_sha,
)


def test_a_folder_read_back_holds_the_same_weights_and_numbers(tmp_path: Path) -> None:
    model = decoder(5)
    folder = model_folder(tmp_path / "m", model)
    assert folder.config == model.config
    assert weights_sha(load_decoder(folder).state_dict()) == weights_sha(model.state_dict())


def test_a_tied_model_survives_the_round_trip(tmp_path: Path) -> None:
    model = decoder(5, tied=True)
    loaded = load_decoder(model_folder(tmp_path / "m", model))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert weights_sha(loaded.state_dict()) == weights_sha(model.state_dict())


def test_weights_sha_depends_on_names_shapes_and_bytes_but_not_on_order() -> None:
    a, b = torch.arange(6.0), torch.ones(2)
    sha = weights_sha({"a": a, "b": b})
    assert sha == weights_sha({"b": b, "a": a})
    assert sha != weights_sha({"a": a, "c": b})
    assert sha != weights_sha({"a": a.view(2, 3), "b": b})
    assert sha != weights_sha({"a": a + 1e-6, "b": b})
    assert sha == weights_sha({"a": a.view(2, 3).t().contiguous().t().reshape(6), "b": b})


def test_a_write_that_dies_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_weights({"a": torch.ones(3)}, path)
    before = file_checksum(path)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        save_weights({"a": torch.ones(3), "b": torch.ones(2).to_sparse()}, path)
    assert file_checksum(path) == before
    assert torch.equal(load_weights(path)["a"], torch.ones(3))


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match="tiny-calc"):
        builtin_path("tiny-clac")


@pytest.mark.parametrize("name", ["tiny-calc", "tiny-text"])
def test_builtin_models_load_and_are_small(name: str) -> None:
    assert name in builtin_names()
    folder = read_folder(builtin_path(name))
    load_decoder(folder)
    assert folder.weights_path.stat().st_size < 1_000_000


def test_config_is_readable_as_a_published_llama(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m")
    names = set(load_weights(folder.weights_path))
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} <= names
    assert "model.layers.1.self_attn.q_proj.weight" in names
