"""Folders that `transformers` wrote: our decoder gives its log-probabilities."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from domain.model_files import INDEX_FILE, WEIGHTS_FILE
from tests.support import requires
from tests.support.engines import reference_logprobs
from tests.support.published_models import KINDS, published, published_logprobs
from workers.models.check import ModelInvalid, check_folder
from workers.models.config import Architecture, read_config, write_config
from workers.models.folder import (
    EMBEDDING,
    HEAD,
    WeightsUnreadable,
    load_decoder,
    load_weights,
    read_folder,
    save_folder,
    save_weights,
    tied_state,
)
from workers.models.shapes import expected_shapes
from workers.models.sources import MODEL_FILES, model_files

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


def sharded(folder: Path) -> tuple[Path, Path]:
    """A published folder of several weights files: its index, and the first of the files."""
    published("qwen2", folder, is_sharded=True)
    return folder / INDEX_FILE, sorted(folder.glob("model-*.safetensors"))[0]


def test_a_missing_foreign_or_escaping_part_is_refused(tmp_path: Path) -> None:
    index, part = sharded(tmp_path)
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
    for text, cause in (("{}", "no index"), ('{"weight_map": {}}', "no tensor")):
        index.write_text(text)
        with pytest.raises(WeightsUnreadable, match=cause):
            load_weights(index)


def test_one_weights_file_is_read_before_an_index_beside_it(tmp_path: Path) -> None:
    published("qwen3", tmp_path, is_sharded=True)
    model = published("qwen3", tmp_path / "newer", seed=1)
    shutil.copy(tmp_path / "newer" / WEIGHTS_FILE, tmp_path)
    ours = reference_logprobs(load_decoder(read_folder(tmp_path)), IDS)
    assert torch.allclose(ours, published_logprobs(model, IDS), atol=1e-5, rtol=0)
    assert model_files(tmp_path) == MODEL_FILES


def findings_of(folder: Path) -> set[tuple[str, str]]:
    """Pointer and code of what the check of a folder finds."""
    try:
        check_folder(folder)
    except ModelInvalid as invalid:
        return {(one.pointer, one.code) for one in invalid.findings}
    return set()


@pytest.mark.parametrize("is_sharded", [False, True])
def test_the_check_takes_a_folder_that_the_engine_reads(tmp_path: Path, is_sharded: bool) -> None:
    published("qwen3-tied", tmp_path, is_sharded=is_sharded)
    one = published("qwen3-tied", tmp_path / "one")
    assert check_folder(tmp_path).parameters == one.num_parameters()
    assert set(model_files(tmp_path)) | {"generation_config.json", "one"} == {
        path.name for path in tmp_path.iterdir()
    }


def test_the_check_names_what_an_index_promises_in_vain(tmp_path: Path) -> None:
    index, part = sharded(tmp_path)
    held, written = part.read_bytes(), index.read_text()
    part.unlink()
    assert findings_of(tmp_path) == {(f"/{part.name}", "missing_file")}
    save_weights({"other": torch.ones(1)}, part)
    assert findings_of(tmp_path) == {(f"/{INDEX_FILE}", "bad_index")}
    part.write_bytes(held[:50])
    assert findings_of(tmp_path) == {(f"/{part.name}", "malformed")}
    part.write_bytes(held)
    for text, code in (
        ('{"weight_map": {}}', "malformed"),
        (written.replace(part.name, "weights.safetensors"), "bad_file_name"),
        (written.replace(part.name, f"../{part.name}"), "malformed"),
    ):
        index.write_text(text)
        assert findings_of(tmp_path) == {(f"/{INDEX_FILE}", code)}


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("untied_head", lambda state, table: state | {HEAD: table + 1e-3}),
        ("unknown_tensor", lambda state, table: state | {"other": table}),
        ("missing_tensor", lambda state, table: {EMBEDDING: table}),
        ("bad_shape", lambda state, table: state | {EMBEDDING: table[:3]}),
        ("bad_dtype", lambda state, table: state | {"model.norm.weight": torch.ones(32).long()}),
    ],
)
def test_check_and_decoder_agree_about_weights_that_are_not_the_models(
    tmp_path: Path,
    code: str,
    change: Callable[[dict[str, torch.Tensor], torch.Tensor], dict[str, torch.Tensor]],
) -> None:
    published("llama-tied", tmp_path)
    folder = read_folder(tmp_path)
    state = load_weights(folder.weights_path)
    table = state[EMBEDDING]
    save_weights({**state, HEAD: table.clone()}, folder.weights_path)
    assert findings_of(tmp_path) == set()
    load_decoder(folder)
    save_weights(change(state, table), folder.weights_path)
    assert code in {found for _, found in findings_of(tmp_path)}
    with pytest.raises(WeightsUnreadable):
        load_decoder(folder)


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
