"""Tasks of 1 and of 10 steps, half each (F15): both are trained in equal share, and nothing is discarded."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from benchmarks.fixed import fixed
from benchmarks.schedule.cases import Case, Cell, Entry
from benchmarks.schedule.run import plan_of
from domain.plan import StrategyName
from simulation.runs import Outcome, Setup
from simulation.workload.generator import fitted_bases
from simulation.workload.trajectory import Tool, Trajectory, Turn
from simulation.workload.workload import Workload
from simulation.world import World

STEPS = 16
BATCH = 4
LONG_TURNS = 10
STEADY = range(4, STEPS - 3)
"""Steps that neither the empty start nor the end's lack of new groups touches."""

REGIME = replace(fixed().regimes["low"], groups_per_batch=BATCH, engines=2)


@dataclass(slots=True)
class HalfLong(Workload):
    """Even ordinals take one turn, odd ones ten turns of the same seconds."""

    def group(self, ordinal: int) -> tuple[Trajectory, ...]:
        """All members alike."""
        turns = LONG_TURNS if ordinal % 2 else 1
        turn = Turn(400, 600, Tool.BASH_TEST, 4.0)
        last = Turn(400, 600, None, 0.0)
        return (Trajectory((turn,) * (turns - 1) + (last,)),) * 8


def run(entry: Entry) -> Outcome:
    """The whole job."""
    physics = fixed().physics_of(REGIME)
    shape = fixed().shape_of(REGIME)
    plan = replace(plan_of(Case(Cell("low", False), entry, 1, STEPS), REGIME), expected_turns=5)
    workload = HalfLong(fitted_bases("swe_glm"), shape, 1)
    return World(Setup(plan, physics, REGIME.engines, workload, REGIME.trainer_tokens_s)).run()


def long_share(outcome: Outcome, steps: Iterable[int]) -> float:
    """Share of long tasks among the groups trained in some steps."""
    trained = [group.ordinal % 2 for group in outcome.groups if group.trained_step in steps]
    return sum(trained) / len(trained)


def test_short_and_long_tasks_are_trained_in_equal_share_without_discards(
    record_property: Callable[[str, object], None],
) -> None:
    outcome = run(Entry(StrategyName.VENUS, "normal"))
    record_property("groups_per_hour", round(3600 * STEPS * BATCH / outcome.makespan_s))
    assert long_share(outcome, STEADY) == pytest.approx(0.5, abs=0.05)
    assert sorted(outcome.trained) == list(range(STEPS * BATCH))
    assert outcome.dropped == {}
    assert max(outcome.staleness) <= REGIME.max_staleness


def test_a_strategy_that_discards_late_groups_pays_with_time() -> None:
    paced = run(Entry(StrategyName.VENUS, "normal"))
    discarding = run(Entry(StrategyName.SLIME_BOUNDED, "tuned", (("lag_max", 0.0),)))
    assert sum(discarding.dropped.values()) > STEPS
    assert discarding.makespan_s > 1.5 * paced.makespan_s
