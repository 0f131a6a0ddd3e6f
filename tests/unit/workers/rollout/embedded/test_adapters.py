"""Adapters: what `peft` gives, row by row, and refusals of what is not computed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import requires
from tests.support.published_models import ALL_TARGETS, adapted, published, published_logprobs
from workers.models.adapter import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Adapter,
    AdapterFault,
    AdapterRefused,
    read_adapter,
)
from workers.models.folder import load_weights, read_folder, tied_state
from workers.rollout.embedded import adapters as adapters_module
from workers.rollout.embedded.adapters import Grouping, PackedAdapter, pack_adapter
from workers.rollout.embedded.arena import KvArena, paged_batch
from workers.rollout.embedded.attention import attention_for
from workers.rollout.embedded.forward import arena_shape, decode, prefill, score
from workers.rollout.embedded.packing import PackedModel, pack

pytestmark = requires("reference")

CPU = torch.device("cpu")
IDS = tuple((7 * i * i + i) % 20 for i in range(40))
ATTENTION = ("q_proj", "v_proj")


def packed_model(path: Path, dtype: torch.dtype = torch.float32) -> PackedModel:
    folder = read_folder(path)
    state = tied_state(folder.config, load_weights(folder.weights_path))
    return pack(folder.config, state, CPU, dtype)


def packed_adapter(model: PackedModel, path: Path) -> PackedAdapter:
    return pack_adapter(read_adapter(path, model.config), model.config, CPU, model.dtype)


@pytest.mark.parametrize("kind", ["llama-grouped", "llama-tied", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": ATTENTION},
        {"targets": ("o_proj", "down_proj"), "r": 1},
        {"targets": ("up_proj", "k_proj"), "use_rslora": True, "r": 7},
    ],
    ids=["all", "attention", "outputs", "scaled by the root of the rank"],
)
def test_an_adapter_gives_the_log_probabilities_of_peft(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    base = published(kind, tmp_path / "base")
    wanted = adapted(base, tmp_path / "adapter", **options)
    model = packed_model(tmp_path / "base")
    adapter = packed_adapter(model, tmp_path / "adapter")
    with torch.inference_mode():
        ours, plain = score(model, IDS, adapter), score(model, IDS)
    assert torch.allclose(ours, published_logprobs(wanted, IDS), atol=1e-5, rtol=0)
    assert not torch.allclose(ours, plain, atol=1e-2)
    merged = wanted.merge_and_unload()
    assert torch.allclose(ours, published_logprobs(merged, IDS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("stack_from", [2, 9], ids=["stacked", "one by one"])
def test_rows_of_a_batch_each_run_with_their_own_adapter_or_with_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack_from: int
) -> None:
    monkeypatch.setattr(adapters_module, "STACK_ADAPTERS_MIN", stack_from)
    base = published("qwen3", tmp_path / "base")
    model = packed_model(tmp_path / "base")
    references: list[Any] = [base]
    adapters: list[PackedAdapter | None] = [None]
    for seed, rank, targets in ((1, 4, ALL_TARGETS), (2, 8, ATTENTION), (3, 2, ("down_proj",))):
        path = tmp_path / str(seed)
        references.append(adapted(base, path, seed=seed, r=rank, targets=targets))
        adapters.append(packed_adapter(model, path))
    owner = [1, 0, 2, 0, 3, 1]
    groups = Grouping().groups([adapters[of] for of in owner], CPU)
    assert len(groups) == (1 if stack_from == 2 else 3)
    arena = KvArena(arena_shape(model), 3 * len(owner), CPU)
    attention = attention_for(arena)
    tables = np.arange(3 * len(owner), dtype=np.int64).reshape(len(owner), 3)
    prompts = torch.tensor([IDS[row : row + 30] for row in range(len(owner))])
    positions = np.broadcast_to(np.arange(29, dtype=np.int64), (len(owner), 29))
    real = np.ones_like(positions, dtype=np.bool_)
    last = np.full((len(owner), 1), 29, dtype=np.int64)
    with torch.inference_mode():
        batch = paged_batch(arena, tables, positions, real)
        prefill(model, attention, batch, prompts[:, :29], groups)
        batch = paged_batch(arena, tables, last, np.ones_like(last, dtype=np.bool_))
        logits = decode(model, attention, batch, prompts[:, 29], groups)
        for row, of in enumerate(owner):
            expected = references[of](prompts[row : row + 1]).logits[0, -1].log_softmax(-1)
            assert torch.allclose(logits[row].log_softmax(-1), expected, atol=1e-5, rtol=0)


def test_groups_follow_the_adapters_of_the_rows(tmp_path: Path) -> None:
    base = published("qwen2", tmp_path / "base")
    model = packed_model(tmp_path / "base")
    one, two = (
        packed_adapter(model, adapted_folder(base, tmp_path / str(seed), seed)) for seed in (1, 2)
    )
    grouping = Grouping()
    assert grouping.groups([None, None], CPU) == ()
    whole = grouping.groups([one, one], CPU)
    assert (whole[0].adapter, whole[0].rows) == (one, None)
    part = grouping.groups([None, one], CPU)
    assert part[0].rows is not None
    assert part[0].rows.tolist() == [1]
    both = grouping.groups([one, two], CPU)
    assert grouping.groups([one, two], CPU) is both
    swapped = grouping.groups([two, one], CPU)
    assert swapped is not both
    pair, other = both[0].adapter.layers[0].qkv, swapped[0].adapter.layers[0].qkv
    assert pair is not None
    assert other is not None
    assert torch.equal(pair.a[0], other.a[1])


def adapted_folder(base: Any, path: Path, seed: int) -> Path:
    adapted(base, path, seed=seed, targets=ATTENTION)
    return path


def test_an_adapter_over_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    base = published("llama-grouped", tmp_path / "base")
    wanted = published_logprobs(adapted(base, tmp_path / "adapter", targets=ATTENTION), IDS)
    model = packed_model(tmp_path / "base", torch.bfloat16)
    with torch.inference_mode():
        ours = score(model, IDS, packed_adapter(model, tmp_path / "adapter"))
    assert ours.dtype is torch.float32
    assert torch.allclose(ours, wanted, atol=0.15, rtol=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An adapter's folder beside its base, both fine."""
    adapted(published("qwen2", tmp_path / "base"), tmp_path / "adapter", targets=ATTENTION)
    return tmp_path / "adapter"


def read(folder: Path) -> Adapter:
    return read_adapter(folder, read_folder(folder.parent / "base").config)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"peft_type": "IA3"}, AdapterFault.UNSUPPORTED_OPTION),
        ({"use_dora": True}, AdapterFault.UNSUPPORTED_OPTION),
        ({"bias": "all"}, AdapterFault.UNSUPPORTED_OPTION),
        ({"lora_bias": True}, AdapterFault.UNSUPPORTED_OPTION),
        ({"rank_pattern": {"q_proj": 8}}, AdapterFault.UNSUPPORTED_OPTION),
        ({"alpha_pattern": {"q_proj": 8}}, AdapterFault.UNSUPPORTED_OPTION),
        ({"modules_to_save": ["lm_head"]}, AdapterFault.UNSUPPORTED_OPTION),
        ({"fan_in_fan_out": True}, AdapterFault.UNSUPPORTED_OPTION),
        ({"layers_to_transform": [0]}, AdapterFault.UNSUPPORTED_OPTION),
        ({"init_lora_weights": "pissa"}, AdapterFault.UNSUPPORTED_OPTION),
        ({"an_option_of_tomorrow": 1}, AdapterFault.UNSUPPORTED_OPTION),
        ({"r": 0}, AdapterFault.BAD_NUMBER),
        ({"r": True}, AdapterFault.BAD_NUMBER),
        ({"lora_alpha": float("nan")}, AdapterFault.BAD_NUMBER),
        ({"r": 8}, AdapterFault.BAD_SHAPE),
        ({"target_modules": ["q_proj", "k_proj"]}, AdapterFault.MISSING_TENSOR),
    ],
)
def test_an_option_that_is_not_computed_is_refused(
    folder: Path, changes: dict[str, Any], fault: AdapterFault
) -> None:
    read(folder)
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(AdapterRefused) as refused:
        read(folder)
    assert refused.value.fault is fault


def test_tensors_that_do_not_fit_the_base_are_refused(folder: Path) -> None:
    path = folder / WEIGHTS_FILE
    tensors = load_file(path)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"

    def refusal(changed: dict[str, torch.Tensor]) -> AdapterFault:
        save_file(changed, path)
        with pytest.raises(AdapterRefused) as refused:
            read(folder)
        return refused.value.fault

    assert refusal({n: t for n, t in tensors.items() if n != name}) is AdapterFault.MISSING_TENSOR
    assert refusal(tensors | {name: torch.ones(3, 4)}) is AdapterFault.BAD_SHAPE
    for place in ("layers.2.self_attn.q_proj", "layers.0.self_attn.qk_proj", "embed_tokens"):
        extra = {f"base_model.model.model.{place}.lora_A.weight": torch.ones(4, 32)}
        assert refusal(tensors | extra) is AdapterFault.UNSUPPORTED_TARGET
    assert refusal({}) is AdapterFault.MISSING_TENSOR
    path.write_bytes(b"no safetensors")
    with pytest.raises(AdapterRefused) as refused:
        read(folder)
    assert refused.value.fault is AdapterFault.UNREADABLE


def test_the_sha_of_an_adapter_is_that_of_its_numbers_and_its_scale(folder: Path) -> None:
    first = read(folder)
    assert read(folder).sha == first.sha
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"lora_alpha": 9}))
    scaled = read(folder)
    assert scaled.scale == 9 / 4
    tensors = load_file(folder / WEIGHTS_FILE)
    save_file({name: t + 1e-6 for name, t in tensors.items()}, folder / WEIGHTS_FILE)
    assert len({first.sha, scaled.sha, read(folder).sha}) == 3
