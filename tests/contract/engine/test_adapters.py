"""Adapters behind the engine port: whose they are, how they change, and what is never shared."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from domain.engine import (
    AdapterRef,
    Capability,
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
    KvMode,
    PauseMode,
    Probe,
    ProbeSequence,
    Refusal,
    SyncFailed,
    WeightKind,
    WeightRef,
    served_sha,
)
from tests.contract.engine.test_published import PROMPTS, assert_same, greedy, ref_of
from tests.support import requires
from tests.support.engines import request
from tests.support.published_models import adapted, published, published_logprobs
from tests.support.waiting import eventually
from workers.models.adapter import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from workers.models.folder import file_checksum, read_folder
from workers.rollout.embedded import shelf
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits

pytestmark = requires("reference")

NAME = "style"
"""Both tenants call their adapter so."""

PROMPT = PROMPTS[0]


@dataclass(frozen=True)
class World:
    """A base model, an engine that serves it, and a place for adapters."""

    base: Any
    engine: EmbeddedEngine
    path: Path

    def adapter(self, seed: int, **options: Any) -> tuple[Any, Path]:
        path = self.path / f"adapter-{seed}"
        return adapted(self.base, path, seed=seed, **options), path

    def ref(self, path: Path, tenant: str = "org_0", **fields: Any) -> WeightRef:
        sha = read_adapter(path, read_folder(self.path / "base").config).sha
        checksum = file_checksum(path / WEIGHTS_FILE)
        ref = WeightRef(1, WeightKind.LORA, str(path), sha, checksum, 0, tenant, NAME)
        return replace(ref, **fields)

    async def load(self, model: Any, ref: WeightRef, kv: KvMode = KvMode.KEEP) -> None:
        """The whole course of an update."""
        await self.engine.pause(PauseMode.KEEP, kv)
        await self.engine.update_weights(ref)
        await self.engine.verify_weights(probe_of(model, ref))
        await self.engine.resume()


def probe_of(model: Any, ref: WeightRef) -> Probe:
    sequence = ProbeSequence(PROMPT, tuple(published_logprobs(model, PROMPT).tolist()))
    return Probe(ref.version, ref.sha, (sequence,), tolerance=1e-5)


def asking(name: str, ids: tuple[int, ...] = PROMPT, **fields: Any) -> GenRequest:
    """A greedy request for the newest adapter of that name, unless the fields say otherwise."""
    defaults = {"adapter": AdapterRef(NAME), "temperature": 0.0, "max_tokens": 24}
    chosen: dict[str, Any] = defaults | fields
    tenant = chosen.pop("tenant", "org_0")
    return replace(request(name, ids, **chosen), tenant=tenant)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    base = published("qwen3", tmp_path / "base")
    engine = EmbeddedEngine("base", read_folder(tmp_path / "base"), EngineLimits(8, 16))
    yield World(base, engine, tmp_path)
    await engine.close()


async def test_two_tenants_with_an_adapter_of_one_name_get_their_own_outputs(world: World) -> None:
    models: dict[str, Any] = {}
    for seed, tenant in ((1, "org_0"), (2, "org_1")):
        models[tenant], path = world.adapter(seed, r=4 * seed)
        await world.load(models[tenant], world.ref(path, tenant, version=seed))
    asked = [
        asking(f"{tenant}-{at}", ids, tenant=tenant)
        for at, ids in enumerate(PROMPTS)
        for tenant in models
    ]
    plain = [request(f"base-{at}", ids, temperature=0.0) for at, ids in enumerate(PROMPTS)]
    results = await asyncio.gather(*(world.engine.generate(one) for one in (*asked, *plain)))
    for one, result in zip(asked, results, strict=False):
        assert result.token_ids == greedy(models[one.tenant], one.token_ids, 24)
        assert_same(models[one.tenant], one.token_ids, result)
        assert set(result.versions) == {1 if one.tenant == "org_0" else 2}
    for one, result in zip(plain, results[len(asked) :], strict=True):
        assert_same(world.base, one.token_ids, result)
        assert set(result.versions) == {0}
    assert {result.cached_tokens for result in results} == {0}
    assert len({result.weights_sha for result in results}) == 3
    assert Capability.LORA in world.engine.info().capabilities


async def test_keys_are_reused_under_the_same_weights_and_adapter_only(world: World) -> None:
    model, path = world.adapter(1)
    ref = world.ref(path)
    await world.load(model, ref)

    async def turn(name: str, before: GenResult, **fields: Any) -> GenResult:
        ids = (*PROMPT, *before.token_ids, 15, 1)
        asked = asking(name, ids, rollout_id=before.rollout_id, **fields)
        result = await world.engine.generate(asked)
        assert_same(model if asked.adapter else world.base, ids, result)
        return result

    first = await world.engine.generate(asking("first", rollout_id="ro"))
    again = await turn("again", first)
    assert again.cached_tokens == len(PROMPT) + len(first.token_ids) - 1
    assert (await turn("base", first, adapter=None)).cached_tokens == 0
    await turn("adapter", first)
    sha = served_sha(world.engine.info().weights_sha, ref.sha)
    assert again.weights_sha == sha
    assert (await turn("same", first, weights_sha=sha)).cached_tokens > 0
    with pytest.raises(EngineRefused) as refused:
        await turn("other", first, weights_sha=world.engine.info().weights_sha)
    assert refused.value.reason is Refusal.WEIGHTS_MISMATCH


@pytest.mark.parametrize("kv", KvMode)
async def test_an_update_of_an_adapter_reaches_running_turns_and_stamps_their_tokens(
    world: World, kv: KvMode
) -> None:
    old, path = world.adapter(1)
    new, newer = world.adapter(2)
    await world.load(old, world.ref(path, version=3))
    asked = asking("r", request_id="r", max_tokens=200)
    turn = asyncio.create_task(world.engine.generate(asked))
    beside = asyncio.create_task(
        world.engine.generate(request("beside", max_tokens=200, temperature=0.0))
    )
    await eventually(lambda: world.engine.stats().sampled_tokens > 20)
    await world.load(new, world.ref(newer, version=4), kv)
    await eventually(lambda: world.engine.stats().finished + world.engine.stats().aborted == 2)
    result, base = await turn, await beside
    assert [span.version for span in result.version_spans] == [3, 4]
    assert set(base.versions) == {0}
    assert_same(world.base, PROMPT, base, 2e-5)
    cut = result.version_spans[0].stop
    head = replace(result, token_ids=result.token_ids[:cut], logprobs=result.logprobs[:cut])
    assert_same(old, PROMPT, head, 2e-5)
    expected = published_logprobs(new, PROMPT + result.token_ids)[len(PROMPT) - 1 :][cut:]
    is_wholly_new = torch.allclose(torch.tensor(result.logprobs[cut:]), expected, atol=2e-5, rtol=0)
    assert is_wholly_new is (kv is KvMode.DROP)


async def test_a_pinned_adapter_is_served_to_the_end_and_refused_afterwards(world: World) -> None:
    old, path = world.adapter(1)
    new, newer = world.adapter(2)
    ref = world.ref(path)
    await world.load(old, ref)
    pinned = AdapterRef(NAME, ref.sha)
    turn = asyncio.create_task(world.engine.generate(asking("r", adapter=pinned, max_tokens=200)))
    await eventually(lambda: world.engine.stats().sampled_tokens > 5)
    await world.load(new, world.ref(newer, version=2))
    result = await turn
    assert_same(old, PROMPT, result, 2e-5)
    assert set(result.versions) == {1}
    with pytest.raises(EngineRefused) as refused:
        await world.engine.generate(asking("late", adapter=pinned))
    assert refused.value.reason is Refusal.WEIGHTS_MISMATCH


@pytest.mark.parametrize("fields", [{"tenant": "org_1"}, {"adapter": AdapterRef("other")}])
async def test_another_tenants_adapter_and_an_unknown_one_are_refused(
    world: World, fields: dict[str, Any]
) -> None:
    model, path = world.adapter(1)
    await world.load(model, world.ref(path))
    with pytest.raises(EngineRefused) as refused:
        await world.engine.generate(asking("x", **fields))
    assert refused.value.reason is Refusal.UNKNOWN_ADAPTER
    assert (await world.engine.generate(asking("y"))).finish is Finish.LENGTH


@pytest.mark.parametrize("has_older", [True, False])
async def test_an_adapter_whose_probe_differs_is_withdrawn(world: World, has_older: bool) -> None:
    older, path = world.adapter(1)
    _, newer = world.adapter(2)
    if has_older:
        await world.load(older, world.ref(path))
    ref = world.ref(newer, version=2)
    await world.engine.pause(PauseMode.KEEP)
    await world.engine.update_weights(ref)
    meanwhile = asyncio.create_task(world.engine.generate(asking("meanwhile")))
    pinned = asyncio.create_task(
        world.engine.generate(asking("pinned", adapter=AdapterRef(NAME, ref.sha)))
    )
    await eventually(lambda: world.engine.stats().waiting == 2)
    with pytest.raises(EngineRefused) as refused:
        await world.engine.resume()
    assert refused.value.reason is Refusal.UNVERIFIED
    with pytest.raises(SyncFailed) as failed:
        await world.engine.verify_weights(probe_of(older, ref))
    assert failed.value.reason is Refusal.PROBE_MISMATCH
    await world.engine.resume()
    with pytest.raises(EngineRefused):
        await pinned
    if has_older:
        assert_same(older, PROMPT, await meanwhile)
        return
    with pytest.raises(EngineRefused) as refused:
        await meanwhile
    assert refused.value.reason is Refusal.UNKNOWN_ADAPTER


async def test_several_updates_without_a_probe_are_undone_together(world: World) -> None:
    """A turn that was accepted between two of them is not served what failed."""
    base, path = world.adapter(1)
    _, newer = world.adapter(2)
    first, second = world.ref(path, version=1), world.ref(newer, version=2)
    await world.engine.pause(PauseMode.KEEP)
    await world.engine.update_weights(first)
    names = {"newest": AdapterRef(NAME), "pinned": AdapterRef(NAME, first.sha)}
    between = [
        asyncio.create_task(world.engine.generate(asking(name, adapter=ref)))
        for name, ref in names.items()
    ]
    await eventually(lambda: world.engine.stats().waiting == 2)
    await world.engine.update_weights(second)
    with pytest.raises(SyncFailed):
        await world.engine.verify_weights(probe_of(base, second))
    await world.engine.resume()
    for one in between:
        with pytest.raises(EngineRefused) as refused:
            await asyncio.wait_for(one, 20)
        assert refused.value.reason is Refusal.UNKNOWN_ADAPTER


async def test_several_failed_updates_leave_waiting_turns_what_they_had(world: World) -> None:
    older, path = world.adapter(1)
    await world.load(older, world.ref(path))
    await world.engine.pause(PauseMode.KEEP)
    before = asyncio.create_task(world.engine.generate(asking("before")))
    await eventually(lambda: world.engine.stats().waiting == 1)
    between = []
    for seed in (2, 3):
        _, newer = world.adapter(seed)
        last = world.ref(newer, version=seed)
        await world.engine.update_weights(last)
        between.append(asyncio.create_task(world.engine.generate(asking(str(seed)))))
        await eventually(lambda: world.engine.stats().waiting == 1 + len(between))
    with pytest.raises(SyncFailed):
        await world.engine.verify_weights(probe_of(older, last))
    await world.engine.resume()
    for result in await asyncio.gather(before, *between):
        assert_same(older, PROMPT, result)
        assert set(result.versions) == {1}


async def test_a_bad_update_gives_a_running_turn_back_an_adapter_that_had_left_the_shelf(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "ADAPTERS_MAX", 1)
    older, path = world.adapter(1)
    other, beside = world.adapter(2)
    _, newer = world.adapter(3)
    await world.load(older, world.ref(path))
    turn = asyncio.create_task(world.engine.generate(asking("r", max_tokens=200)))
    await eventually(lambda: world.engine.stats().sampled_tokens > 5)
    await world.load(other, world.ref(beside, "org_1"))
    await world.engine.pause(PauseMode.KEEP)
    assert world.engine.stats().active == 1
    bad = world.ref(newer, version=3)
    await world.engine.update_weights(bad)
    with pytest.raises(SyncFailed):
        await asyncio.wait_for(world.engine.verify_weights(probe_of(older, bad)), 20)
    await world.engine.resume()
    result = await asyncio.wait_for(turn, 60)
    assert_same(older, PROMPT, result, 2e-5)
    assert set(result.versions) == {1}
    theirs = await world.engine.generate(asking("theirs", tenant="org_1"))
    assert_same(other, PROMPT, theirs)


async def test_an_adapter_that_cannot_be_had_leaves_the_loaded_one(world: World) -> None:
    model, path = world.adapter(1)
    await world.load(model, world.ref(path, epoch=3))
    _, newer = world.adapter(2)
    good = world.ref(newer, version=2, epoch=3)

    async def refusal(ref: WeightRef) -> Refusal:
        with pytest.raises(SyncFailed) as failed:
            await world.engine.update_weights(ref)
        return failed.value.reason

    assert await refusal(good) is Refusal.NOT_PAUSED
    await world.engine.pause(PauseMode.KEEP)
    assert await refusal(replace(good, epoch=2)) is Refusal.OLD_EPOCH
    assert await refusal(replace(good, checksum="0" * 64)) is Refusal.CHECKSUM
    assert await refusal(replace(good, sha="0" * 64)) is Refusal.CHECKSUM
    assert await refusal(replace(good, uri=str(world.path / "none"))) is Refusal.UNREADABLE
    assert await refusal(replace(good, tenant="")) is Refusal.UNSUPPORTED_ADAPTER
    record = json.loads((newer / CONFIG_FILE).read_text())
    (newer / CONFIG_FILE).write_text(json.dumps(record | {"use_dora": True}))
    assert await refusal(good) is Refusal.UNSUPPORTED_ADAPTER
    (newer / CONFIG_FILE).write_text(json.dumps(record | {"r": 5}))
    assert await refusal(good) is Refusal.WRONG_SHAPES
    await world.engine.resume()
    assert_same(model, PROMPT, await world.engine.generate(asking("x")))


async def test_a_new_base_keeps_its_adapters_and_shares_no_keys_with_the_old_one(
    world: World,
) -> None:
    _, path = world.adapter(1)
    await world.load(adapted(world.base, path, seed=1), world.ref(path))
    first = await world.engine.generate(asking("a", rollout_id="ro"))
    base = published("qwen3", world.path / "new", seed=5)
    ref, probe = ref_of(world.path / "new" / "model.safetensors", base, 1)
    await world.engine.pause(PauseMode.KEEP)
    await world.engine.update_weights(ref)
    with pytest.raises(SyncFailed) as failed:
        await world.engine.update_weights(world.ref(path, version=2))
    assert failed.value.reason is Refusal.UNVERIFIED
    await world.engine.verify_weights(probe)
    await world.engine.resume()
    ids = (*PROMPT, *first.token_ids, 3)
    second = await world.engine.generate(asking("b", ids, rollout_id="other"))
    assert second.cached_tokens == 0
    assert_same(adapted(base, path, seed=1), ids, second)
