"""Every mechanism's switch changes what is decided, where its strategy has the mechanism at all."""

import hashlib
from dataclasses import replace
from functools import lru_cache
from typing import Final

import pytest

from domain.commands import Command
from domain.events import Event
from domain.plan import Mechanism, Order, Scheduling, StrategyName
from simulation.world import World
from tests.simulation.small import setup

CAPACITY_TOKENS: Final = 16_000
"""A quarter of the contexts in flight: admission and migration have something to decide."""

SLOTS: Final = 4
"""Turns queue for them, so that their order matters also where nobody's pages are protected."""

VENUS: Final = frozenset(Mechanism)

HAS: Final = {
    StrategyName.VENUS: VENUS,
    StrategyName.ORACLE: VENUS,
    StrategyName.RANDOM: VENUS - {Mechanism.PREDICTOR},
    StrategyName.LONGEST: frozenset({Mechanism.PRIORITY}),
    StrategyName.TTL: frozenset({Mechanism.PRIORITY}),
}
"""Mechanisms by strategy; what is not listed has none of them. A random order asks no predictor, and
`oldest` orders by creation under any strategy, so that only `nearest` and `longest` ask one."""


@lru_cache
def decided(strategy: StrategyName, off: tuple[Mechanism, ...], order: Order) -> str:
    """Hash of all commands of a run with their times, and of what the engines did with their pages."""
    small = setup(strategy, seed=5)
    plan = replace(
        small.plan, groups_per_batch=4, async_ratio=3.0, order=order, max_steps=4,
        scheduling=Scheduling(strategy, off),
    )  # fmt: skip
    physics = replace(small.physics, kv_capacity_tokens=CAPACITY_TOKENS, slots=SLOTS)
    world = World(replace(small, plan=plan, physics=physics))
    digest, step = hashlib.sha256(), world.core.step

    def recorded(now: float, event: Event) -> list[Command]:
        commands = step(now, event)
        digest.update(repr((now, commands)).encode())
        return commands

    world.core.step = recorded  # type: ignore[method-assign]
    for engine in world.run().engines:
        digest.update(repr((engine.name, engine.device.counts, engine.counts)).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("mechanism", list(Mechanism))
def test_a_mechanism_that_is_off_changes_what_is_decided(mechanism: Mechanism) -> None:
    venus = StrategyName.VENUS
    assert decided(venus, (mechanism,), Order.NEAREST) != decided(venus, (), Order.NEAREST)


def test_the_predictor_has_no_say_in_an_order_by_creation() -> None:
    venus, off = StrategyName.VENUS, (Mechanism.PREDICTOR,)
    assert decided(venus, off, Order.OLDEST) == decided(venus, (), Order.OLDEST)


@pytest.mark.parametrize("strategy", [one for one in StrategyName if one is not StrategyName.VENUS])
def test_a_strategy_ignores_the_switches_of_what_it_does_not_have(strategy: StrategyName) -> None:
    lacks = tuple(one for one in Mechanism if one not in HAS.get(strategy, frozenset()))
    assert decided(strategy, lacks, Order.NEAREST) == decided(strategy, (), Order.NEAREST)


@pytest.mark.parametrize("strategy", [StrategyName.LONGEST, StrategyName.TTL])
def test_baselines_that_serve_by_rank_obey_the_switch_of_priority(strategy: StrategyName) -> None:
    off = (Mechanism.PRIORITY,)
    assert decided(strategy, off, Order.NEAREST) != decided(strategy, (), Order.NEAREST)
