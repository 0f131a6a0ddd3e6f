"""Engines whose device holds hardly more than one context: everybody goes on, one after the other."""

from dataclasses import replace

import pytest

from domain.plan import StrategyName
from simulation.workload.workload import Workload, WorkloadShape
from simulation.world import World
from tests.simulation.small import BATCH, ShortBases, setup

STEPS = 3
GROUP = 2


@pytest.mark.parametrize("prompt_tokens", [800, 7_900])
@pytest.mark.parametrize("has_host_tier", [False, True])
@pytest.mark.parametrize("strategy", list(StrategyName))
def test_every_strategy_trains_where_one_context_nearly_fills_an_engine(
    strategy: StrategyName, has_host_tier: bool, prompt_tokens: int
) -> None:
    """Contexts of up to 8,800 tokens on 9,008: what is set aside for neighbours is more than is left."""
    of = setup(
        strategy, has_host_tier=has_host_tier, group_size=GROUP, max_steps=STEPS, watchdog_s=1e9
    )
    shape = WorkloadShape(
        rollouts_per_group=GROUP, first_prompt_tokens=prompt_tokens, context_tokens_max=8_800
    )
    physics = replace(of.physics, kv_capacity_tokens=9_008, host_tier_tokens=36_032)
    workload = Workload(ShortBases(), shape, 1)
    outcome = World(replace(of, physics=physics, workload=workload, seconds_max=1e6)).run()
    assert len(outcome.trained) == STEPS * BATCH
