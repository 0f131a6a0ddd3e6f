"""Faults of a run: engines that die and come back, messages that are lost, engines that are slow.

All of it is drawn before the run from a seed, so that the same run has the same faults under every
strategy. An engine that dies loses the turns under way; sandboxes live elsewhere, so its rollouts go
on by re-prefill. It comes back under a higher epoch, empty and without weights. Only what the scheduler
hears of turns can be lost: what ends a rollout, a group or a step is written and read again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol

from simulation.clock import VirtualClock
from simulation.physics import EnginePhysics
from simulation.workload.workload import chance_of

LEASE_S: Final = 6.0
"""From the death of an engine to the end of its lease, when the scheduler hears of it."""


@dataclass(frozen=True, slots=True)
class EngineLoss:
    """An engine is killed, and another process takes its place."""

    engine: int
    at_s: float
    down_s: float
    """Until the new process joins; at least the lease."""


@dataclass(frozen=True, slots=True)
class Slowness:
    """An engine's steps take `factor` times as long for a while."""

    engine: int
    at_s: float
    for_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in a run."""

    losses: tuple[EngineLoss, ...] = ()
    slownesses: tuple[Slowness, ...] = ()
    message_loss: float = 0.0
    """Probability that the scheduler does not hear of a turn."""
    seed: int = 0

    def message_chance(self) -> Callable[[], bool]:
        """Asked once a message: whether it is lost."""
        chance, share = chance_of(self.seed, 0, "messages"), self.message_loss
        return lambda: chance.random() < share


@dataclass(frozen=True, slots=True)
class FaultShape:
    """How much goes wrong over `horizon_s`."""

    losses: int = 3
    slownesses: int = 2
    message_loss: float = 0.05
    down_s: tuple[float, float] = (10.0, 120.0)
    slow_for_s: tuple[float, float] = (60.0, 600.0)
    factor: tuple[float, float] = (1.5, 5.0)


class Faulty(Protocol):
    """What can be broken."""

    clock: VirtualClock

    def lose_engine(self, engine: int) -> None:
        """Its process dies."""
        ...

    def expire_engine(self, engine: int) -> None:
        """The scheduler hears of the death."""
        ...

    def revive_engine(self, engine: int) -> None:
        """A new process joins under a higher epoch."""
        ...

    def slow_engine(self, engine: int, factor: float) -> None:
        """Its steps take so many times as long as usual from the next one on."""
        ...


def draw_faults(seed: int, engines: int, horizon_s: float, shape: FaultShape) -> Faults:
    """Faults at times spread evenly over the horizon."""
    chance = chance_of(seed, engines, "faults")
    losses = sorted(
        (_loss(chance, engines, horizon_s, shape) for _ in range(shape.losses)),
        key=lambda one: (one.at_s, one.engine),
    )
    slownesses = tuple(
        Slowness(
            chance.randrange(engines),
            chance.uniform(0.0, horizon_s),
            chance.uniform(*shape.slow_for_s),
            chance.uniform(*shape.factor),
        )
        for _ in range(shape.slownesses)
    )
    return Faults(tuple(losses), slownesses, shape.message_loss, seed)


def arrange(world: Faulty, faults: Faults) -> None:
    """Put the faults on the world's clock; times count from now."""
    clock, now = world.clock, world.clock.now
    for loss in faults.losses:
        dies_at, engine = now + loss.at_s, loss.engine
        clock.at(dies_at, lambda engine=engine: world.lose_engine(engine))  # type: ignore[misc]
        clock.at(dies_at + LEASE_S, lambda engine=engine: world.expire_engine(engine))  # type: ignore[misc]
        back_at = dies_at + max(loss.down_s, LEASE_S)
        clock.at(back_at, lambda engine=engine: world.revive_engine(engine))  # type: ignore[misc]
    for slow in faults.slownesses:
        begin = now + slow.at_s
        clock.at(begin, lambda slow=slow: world.slow_engine(slow.engine, slow.factor))  # type: ignore[misc]
        end = begin + slow.for_s
        clock.at(end, lambda slow=slow: world.slow_engine(slow.engine, 1.0))  # type: ignore[misc]


def slowed(physics: EnginePhysics, factor: float) -> EnginePhysics:
    """An engine whose steps take `factor` times as long; its links are as fast as before."""
    return replace(
        physics,
        bandwidth=physics.bandwidth / factor,
        step_overhead_s=physics.step_overhead_s * factor,
        prefill_flops=physics.prefill_flops / factor,
    )


def _loss(chance: Random, engines: int, horizon_s: float, shape: FaultShape) -> EngineLoss:
    return EngineLoss(
        chance.randrange(engines), chance.uniform(0.0, horizon_s), chance.uniform(*shape.down_s)
    )
