"""Small runs of the simulator: short rollouts, engines that are full with a few of them."""

from dataclasses import replace
from random import Random
from typing import Any, Final

from benchmarks.fixed import fixed
from domain.plan import Scheduling, StrategyName
from simulation.faults import Faults
from simulation.runs import Setup
from simulation.workload.trajectory import Tool, Trajectory, Turn
from simulation.workload.workload import Workload, WorkloadShape
from simulation.world import World
from tests.simulation.plans import plan

BATCH: Final = 3
STEPS: Final = 6
ENGINES: Final = 2
CAPACITY_TOKENS: Final = 24_000
"""Of each engine: about half of the contexts that are in flight."""


class ShortBases:
    """Trajectories of three to ten turns, their tools between a second and ten minutes."""

    def draw(self, chance: Random) -> Trajectory:
        """One base."""
        turns = [
            Turn(
                chance.randint(50, 500),
                chance.randint(100, 900),
                chance.choice((Tool.READ, Tool.BASH_TEST)),
                chance.choice((1.0, 5.0, 60.0, 600.0)),
            )
            for _ in range(chance.randint(3, 10))
        ]
        turns[-1] = replace(turns[-1], tool=None, tool_s=0.0)
        return Trajectory(tuple(turns))


def setup(
    strategy: StrategyName = StrategyName.VENUS,
    *,
    seed: int = 1,
    has_host_tier: bool = True,
    faults: Faults | None = None,
    **changes: Any,
) -> Setup:
    """One small run, the coordinator's invariants checked after every step."""
    shape = WorkloadShape(rollouts_per_group=4, first_prompt_tokens=800, context_tokens_max=8_000)
    engine = fixed().engines["8b-h100"]
    tokens = CAPACITY_TOKENS * 4
    job = plan(
        group_size=4, groups_per_batch=BATCH, max_staleness=2, async_ratio=1.5, max_steps=STEPS,
        engines_max=ENGINES, engines_min=1, watchdog_s=1e6, checkpoint_every=2,
        scheduling=Scheduling(strategy),
    )  # fmt: skip
    return Setup(
        plan=replace(job, **changes),
        physics=replace(engine, kv_capacity_tokens=CAPACITY_TOKENS, host_tier_tokens=tokens),
        engines=ENGINES,
        workload=Workload(ShortBases(), shape, seed),
        trainer_tokens_s=60_000,
        has_host_tier=has_host_tier,
        checking=True,
        seconds_max=200_000.0,
        faults=faults,
    )


def world(*arguments: Any, **changes: Any) -> World:
    """A world that has not run yet."""
    return World(setup(*arguments, **changes))
