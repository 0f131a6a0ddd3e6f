"""Adapters of several tenants on one engine of an installation that gives them weights."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from domain.engine import GenResult, PauseMode
from infra.settings import Settings
from kv.ranks import RankClass, compose
from kv.rules import RANKED
from tests.contract.engine.test_adapters import World, asking
from tests.support import requires
from tests.support.published_models import published
from tests.support.waiting import eventually
from workers.models.folder import read_folder
from workers.rollout.embedded.engine import EmbeddedEngine
from workers.rollout.main import limits_of

pytestmark = requires("reference")

ENVIRON = {"VENUS_TENANTS": "org_two=2,org_five=5:1:1:0", "VENUS_ENGINE_SLOTS": "8"}
WEIGHTS = {"org_one": 1, "org_two": 2, "org_five": 5}
TURNS = 30
"""Of a tenant, over its weight."""

LONGEST = 16
"""Tokens of the longest turn, each a decode step."""

STEP_S = 0.1


async def play(world: World) -> dict[str, list[GenResult]]:
    """All turns of all tenants wait before the first one starts."""
    chance, results = Random(0), dict[str, list[GenResult]]()
    await world.engine.pause(PauseMode.KEEP)

    async def turn(tenant: str, number: int) -> None:
        best = RankClass.CRITICAL if tenant == "org_one" else RankClass.NORMAL
        length = chance.randint(1, LONGEST)
        one = asking(f"{tenant}-{number}", (number % 10, 1, 2), max_tokens=length, tenant=tenant)
        result = await world.engine.generate(replace(one, rank=compose(best, number, 0)))
        results.setdefault(tenant, []).append(result)

    async with asyncio.TaskGroup() as turns:
        for tenant, weight in WEIGHTS.items():
            for number in range(TURNS * weight):
                turns.create_task(turn(tenant, number))
        await eventually(lambda: len(world.engine.waiting()) == TURNS * sum(WEIGHTS.values()))
        await world.engine.resume()
    return results


def used(results: list[GenResult], begin: float, end: float) -> float:
    """Slot time in a window: all turns were accepted at zero, and each ended in its last step."""
    spans = ((one.queued_s, one.queued_s + one.generate_s + STEP_S) for one in results)
    return sum(max(min(ended, end) - max(began, begin), 0.0) for began, ended in spans)


async def test_slot_time_of_tenants_follows_the_settings_of_the_installation(
    tmp_path: Path,
) -> None:
    base = published("qwen3", tmp_path / "base")
    engines: list[EmbeddedEngine] = []
    # Time is counted in decode steps.
    clock = lambda: STEP_S * engines[0].stats().steps if engines else 0.0  # noqa: E731
    limits = limits_of(Settings.from_env(ENVIRON), RANKED)
    engines.append(EmbeddedEngine("base", read_folder(tmp_path / "base"), limits, clock=clock))
    world = World(base, engines[0], tmp_path)
    for seed, tenant in enumerate(WEIGHTS):
        model, path = world.adapter(seed)
        await world.load(model, world.ref(path, tenant))
    results = await play(world)
    await world.engine.close()
    window = 10 * LONGEST * STEP_S
    # While the last turn of nobody has started, all of them wait.
    backlogged = min(max(one.queued_s for one in mine) for mine in results.values())
    assert backlogged >= window + LONGEST * STEP_S
    begin = 0.0
    while begin + window <= backlogged:
        got = {tenant: used(results[tenant], begin, begin + window) for tenant in WEIGHTS}
        assert sum(got.values()) == pytest.approx(8 * window), "no slot was idle"
        for tenant, weight in WEIGHTS.items():
            assert got[tenant] == pytest.approx(weight * window, rel=0.05)
        begin += LONGEST * STEP_S / 4
