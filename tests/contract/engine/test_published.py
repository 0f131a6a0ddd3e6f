"""The embedded engine over folders that `transformers` wrote: its ids and log-probabilities."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from domain.engine import (
    NAN_LOGITS,
    Finish,
    GenResult,
    PauseMode,
    Probe,
    ProbeSequence,
    Refusal,
    SyncFailed,
    WeightKind,
    WeightRef,
)
from tests.support import requires
from tests.support.engines import request
from tests.support.published_models import KINDS, published, published_logprobs
from workers.models.folder import (
    file_checksum,
    load_weights,
    read_folder,
    save_weights,
    weights_sha,
)
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

pytestmark = requires("reference")

PROMPTS = [
    (10, 1, 2, 11, 3, 4, 12),
    (7,),
    tuple((7 * i * i + i) % 20 for i in range(33)),
    tuple((5 * i * i + 3) % 20 for i in range(150)),
]
"""One page, one token, three pages, and two prefill chunks."""

BF16_TOLERANCE = 0.15
"""Largest |delta log p| of bfloat16 against float32 on these models, whose weights are far larger than
trained ones; 8 bits of mantissa through two layers. Measured: at most 0.09, 0.011 on average."""


def engine_of(path: Path, **options: Any) -> EmbeddedEngine:
    return EmbeddedEngine("published", read_folder(path), EngineLimits(4), **options)


async def all_of(engine: EmbeddedEngine, **fields: object) -> list[GenResult]:
    requests = [request(str(i), ids, max_tokens=24, **fields) for i, ids in enumerate(PROMPTS)]
    return list(await asyncio.gather(*(engine.generate(one) for one in requests)))


def greedy(model: Any, ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    """What `transformers` generates."""
    model.generation_config.eos_token_id = None
    tokens = torch.tensor([ids])
    # Without a mask of its own it takes every 0 of the prompt for padding.
    made = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(made[0, len(ids) :].tolist())


def assert_same(model: Any, ids: tuple[int, ...], result: GenResult, atol: float = 1e-5) -> None:
    expected = published_logprobs(model, ids + result.token_ids)[len(ids) - 1 :]
    assert torch.allclose(torch.tensor(result.logprobs), expected, atol=atol, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_ids_and_log_probabilities_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    model = published(kind, tmp_path, is_sharded=kind == "qwen2")
    engine = engine_of(tmp_path)
    results = await all_of(engine, temperature=0.0)
    for ids, result in zip(PROMPTS, results, strict=True):
        assert result.token_ids == greedy(model, ids, 24)
        assert_same(model, ids, result)
    await engine.close()


@pytest.mark.parametrize("kind", ["llama-grouped", "qwen2", "qwen3-tied"])
async def test_sampled_and_second_turns_have_the_log_probabilities_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    model = published(kind, tmp_path)
    engine = engine_of(tmp_path)
    for ids, result in zip(PROMPTS, await all_of(engine, seed=3), strict=True):
        assert_same(model, ids, result)
        longer = (*ids, *result.token_ids, 15, 1, 2)
        again = await engine.generate(
            request("next", longer, rollout_id=result.rollout_id, max_tokens=9)
        )
        assert again.cached_tokens > 0
        assert_same(model, longer, again)
    await engine.close()


@pytest.mark.parametrize("kind", ["llama-grouped", "qwen2", "qwen3"])
async def test_bfloat16_weights_and_keys_stay_near_float32(tmp_path: Path, kind: str) -> None:
    model = published(kind, tmp_path)
    engine = engine_of(tmp_path, dtype=torch.bfloat16)
    for ids, result in zip(PROMPTS, await all_of(engine), strict=True):
        assert_same(model, ids, result, BF16_TOLERANCE)
    await engine.close()


def ref_of(path: Path, model: Any, version: int) -> tuple[WeightRef, Probe]:
    """A published file as an update, and the probe that `transformers` gives for it."""
    sha = weights_sha(load_weights(path))
    ref = WeightRef(version, WeightKind.FILE, str(path), sha, file_checksum(path))
    sequence = ProbeSequence(PROMPTS[0], tuple(published_logprobs(model, PROMPTS[0]).tolist()))
    return ref, Probe(version, sha, (sequence,), tolerance=1e-5)


@pytest.mark.parametrize("kind", ["llama-tied", "qwen3-tied"])
async def test_an_update_of_a_tied_model_without_a_head_in_its_file_reaches_the_head(
    tmp_path: Path, kind: str
) -> None:
    published(kind, tmp_path / "old")
    new = published(kind, tmp_path / "new", seed=1)
    engine = engine_of(tmp_path / "old")
    ref, probe = ref_of(tmp_path / "new" / "model.safetensors", new, 1)
    await engine.pause(PauseMode.KEEP)
    await engine.update_weights(ref)
    await engine.verify_weights(probe)
    await engine.resume()
    result = await engine.generate(request(temperature=0.0, max_tokens=24))
    assert result.token_ids == greedy(new, PROMPTS[0], 24)
    assert_same(new, PROMPTS[0], result)
    await engine.close()


async def test_an_update_whose_head_differs_from_its_tied_embedding_is_refused(
    tmp_path: Path,
) -> None:
    old = published("qwen3-tied", tmp_path / "old")
    new = published("qwen3-tied", tmp_path / "new", seed=1)
    path = tmp_path / "new" / "model.safetensors"
    stale = load_weights(tmp_path / "old" / "model.safetensors")["model.embed_tokens.weight"]
    save_weights(load_weights(path) | {"lm_head.weight": stale}, path)
    ref, _ = ref_of(path, new, 1)
    engine = engine_of(tmp_path / "old")
    await engine.pause(PauseMode.KEEP)
    with pytest.raises(SyncFailed) as failed:
        await engine.update_weights(ref)
    assert failed.value.reason is Refusal.UNTIED_HEAD
    with pytest.raises(SyncFailed) as failed:
        await engine.update_weights(replace(ref, checksum="0" * 64))
    assert failed.value.reason is Refusal.CHECKSUM
    await engine.resume()
    assert_same(old, PROMPTS[0], await engine.generate(request()))
    await engine.close()


async def test_a_request_whose_logits_are_no_numbers_ends_alone_and_leaves_no_trace(
    tmp_path: Path,
) -> None:
    published("qwen3", tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_weights(path)
    state["model.embed_tokens.weight"][5] = float("nan")
    save_weights(state, path)
    engine = EmbeddedEngine("broken", read_folder(tmp_path), EngineLimits(2))
    sound = request("sound", (10, 1, 2), seed=1, max_tokens=30, temperature=0.0)
    alone = await engine.generate(sound)
    assert 5 not in alone.token_ids
    broken, beside = await asyncio.gather(
        engine.generate(request("broken", tuple([5] * 40), max_tokens=30)),
        engine.generate(replace(sound, rollout_id=alone.rollout_id)),
    )
    assert (broken.finish, broken.error, broken.token_ids) == (Finish.ERROR, NAN_LOGITS, ())
    assert beside.token_ids == alone.token_ids
    for name in ("a", "b"):
        after = await engine.generate(request(name, (10, 1, 2), max_tokens=30, temperature=0.0))
        assert (after.finish, after.token_ids) == (Finish.LENGTH, alone.token_ids)
    await engine.close()
