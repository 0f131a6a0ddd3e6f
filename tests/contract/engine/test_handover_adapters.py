"""Pages that an adapter made are pages of that adapter only, on the next engine as well."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from domain.engine import GenResult, PauseMode
from domain.kv_ticket import KvFailure
from tests.contract.engine.test_adapters import World, asking
from tests.contract.engine.test_published import PROMPTS
from tests.support import requires
from tests.support.published_models import published
from workers.models.folder import read_folder
from workers.rollout.embedded.engine import EmbeddedEngine, EngineLimits
from workers.rollout.kv_transfer.transfer import KvTransfer

pytestmark = requires("reference")

CONTEXT = (PROMPTS[0] * 40)[:40]


@dataclass
class Two:
    """Two engines with the same adapter of the same base."""

    worlds: tuple[World, World]
    transfers: tuple[KvTransfer, KvTransfer]

    async def first_turn(self, **fields: object) -> GenResult:
        return await self.worlds[0].engine.generate(asking("a", CONTEXT, max_tokens=6, **fields))

    async def second_turn(self, first: GenResult, engine: int, **fields: object) -> GenResult:
        """On the second engine with the pages, or on the first without."""
        source = await self.worlds[0].engine.export_kv(first.rollout_id)
        asked = asking("a", (*CONTEXT, *first.token_ids, 5, 6), max_tokens=6, **fields)
        asked = replace(asked, kv_source=source if engine else None)
        return await self.worlds[engine].engine.generate(asked)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    base = published("qwen3", tmp_path / "base")
    folder = read_folder(tmp_path / "base")
    transfers = (KvTransfer(time.time), KvTransfer(time.time))
    limits = EngineLimits(4, 32)
    engines = [EmbeddedEngine("base", folder, limits, transfer=one) for one in transfers]
    worlds = (World(base, engines[0], tmp_path), World(base, engines[1], tmp_path))
    model, path = worlds[0].adapter(1)
    for world in worlds:
        for tenant in ("org_0", "org_1"):
            await world.load(model, world.ref(path, tenant))
    yield Two(worlds, transfers)
    for engine, transfer in zip(engines, transfers, strict=True):
        await engine.close()
        transfer.close()


async def test_a_turn_under_an_adapter_goes_on_elsewhere_with_its_pages(two: Two) -> None:
    first = await two.first_turn()
    moved = await two.second_turn(first, 1)
    stayed = await two.second_turn(first, 0)
    assert moved.cached_tokens == 32
    assert moved.token_ids == stayed.token_ids
    assert moved.logprobs == pytest.approx(stayed.logprobs, abs=1e-5)


async def test_pages_of_an_adapter_are_nothing_to_the_base_nor_to_a_newer_version(
    two: Two,
) -> None:
    first = await two.first_turn()
    plain = await two.second_turn(first, 1, adapter=None)
    assert plain.cached_tokens == 0
    model, path = two.worlds[1].adapter(2)
    await two.worlds[1].load(model, two.worlds[1].ref(path, version=2))
    newer = await two.second_turn(first, 1)
    assert newer.cached_tokens == 0
    counted = f"import_failed_{KvFailure.OTHER_WEIGHTS.value}"
    assert two.transfers[1].counts == {counted: 2}


async def test_another_tenant_with_the_same_adapter_finds_nothing_of_what_came(two: Two) -> None:
    first = await two.first_turn()
    await two.second_turn(first, 1)
    ids = (*CONTEXT, *first.token_ids, 5, 6)
    theirs = asking("b", ids, max_tokens=6, tenant="org_1")
    result = await two.worlds[1].engine.generate(theirs)
    assert result.cached_tokens == 0


async def test_an_update_between_the_copy_and_the_turn_costs_a_prefill(two: Two) -> None:
    first = await two.first_turn(adapter=None)
    engine = two.worlds[1].engine
    await engine.pause(PauseMode.KEEP)
    engine._core.weights_sha = "newer"
    await engine.resume()
    moved = await two.second_turn(first, 1, adapter=None)
    assert moved.cached_tokens == 0
    assert two.transfers[1].counts["imports"] == 0
