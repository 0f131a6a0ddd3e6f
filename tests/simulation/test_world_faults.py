"""The simulator under faults: engines die, messages are lost, engines are slow."""

from typing import Final

import pytest

from domain.plan import StrategyName
from simulation.faults import EngineLoss, Faults, FaultShape, Slowness, draw_faults
from simulation.runs import Outcome
from simulation.world import World
from tests.simulation.small import BATCH, ENGINES, STEPS, world

HORIZON_S: Final = 2_000.0
"""Within which the faults of these runs begin; the runs last longer."""

STORM: Final = FaultShape(losses=5, slownesses=3, message_loss=0.2)

STRATEGIES: Final = (
    StrategyName.VENUS,
    StrategyName.SLIME_BOUNDED,
    StrategyName.THUNDERAGENT_UPSTREAM,
    StrategyName.TTL,
)


def check(run: World, outcome: Outcome) -> None:
    """All planned groups are trained exactly once, none beyond the bound."""
    assert len(outcome.steps) == STEPS
    assert sorted(outcome.trained) == list(range(STEPS * BATCH))
    assert max(outcome.staleness) <= run.setup.plan.max_staleness
    if run.setup.plan.scheduling.strategy is StrategyName.VENUS:
        assert outcome.dropped == {}, "pacing never has to discard"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_under_drawn_faults_all_groups_are_trained_once_within_the_bound(
    strategy: StrategyName, seed: int
) -> None:
    faults = draw_faults(seed, ENGINES, HORIZON_S, STORM)
    run = world(strategy, seed=seed, faults=faults)
    outcome = run.run()
    check(run, outcome)
    assert max(run.epochs.values()) > 1, "no engine came back"


def test_a_killed_engine_comes_back_under_a_higher_epoch_and_loses_turns_only() -> None:
    calm = world().run()
    loss = EngineLoss(engine=0, at_s=calm.makespan_s / 3, down_s=60.0)
    run = world(faults=Faults((loss,)))
    outcome = run.run()
    check(run, outcome)
    assert sorted(run.epochs.values()) == [1, 2]
    assert len(outcome.engines) == ENGINES + 1
    sampled = sum(engine.counts.sampled_tokens for engine in outcome.engines)
    useful = sum(engine.counts.sampled_tokens for engine in calm.engines)
    assert useful <= sampled <= useful * 1.2, "more was sampled again than the turns under way"


def test_with_all_engines_dead_for_a_while_the_job_waits_and_goes_on() -> None:
    losses = tuple(EngineLoss(engine, 100.0, 300.0) for engine in range(ENGINES))
    run = world(faults=Faults(losses))
    check(run, run.run())


def test_lost_messages_cost_the_schedule_and_not_the_groups() -> None:
    run = world(faults=Faults(message_loss=0.5, seed=3))
    check(run, run.run())
    assert run.events < world_events()


def world_events() -> int:
    calm = world()
    calm.run()
    return calm.events


def test_a_slow_engine_makes_the_run_longer_while_it_is_slow() -> None:
    calm = world().run().makespan_s
    slow = tuple(Slowness(engine, 0.0, 1e6, 4.0) for engine in range(ENGINES))
    brief = tuple(Slowness(engine, 0.0, 60.0, 4.0) for engine in range(ENGINES))
    for_ever, for_a_minute = (world(faults=Faults((), those)) for those in (slow, brief))
    slowest, slower = for_ever.run(), for_a_minute.run()
    check(for_ever, slowest)
    check(for_a_minute, slower)
    assert slowest.makespan_s > 1.04 * calm, "tools are most of the time of this run"
    assert slower.makespan_s < slowest.makespan_s


def test_the_same_seed_draws_the_same_faults() -> None:
    assert draw_faults(7, 4, 1e4, STORM) == draw_faults(7, 4, 1e4, STORM)
    assert draw_faults(7, 4, 1e4, STORM) != draw_faults(8, 4, 1e4, STORM)
