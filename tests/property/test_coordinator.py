"""The coordinator under random faults: invariants after every step, exactly the planned steps.

The machine owns a modelled world (rows, hosts, links). Rules let time pass or inflict a fault; the
core checks its invariants after every step, the rows refuse double effects, and at the end every job
must have ended as planned. A new leader starts from the rows alone.
"""

from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from domain.states import TERMINAL
from tests.property.worlds import FAULTS, finish, inflict, random_world, run_out
from tests.simulation.driver import World
from tests.simulation.rows import JobRow

STEPS_LEAST = 10_000
"""Events folded in the normal run."""


class FaultyWorld(RuleBasedStateMachine):
    """Random faults at random times."""

    events_folded: ClassVar[int] = 0

    world: World
    jobs: list[JobRow]
    chance: Random

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        """A world with one or two jobs."""
        self.world, self.jobs, self.chance = random_world(seed)

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 6.0]))
    def let_time_pass(self, seconds: float) -> None:
        """Hosts work."""
        self.world.run_for(seconds)

    @rule(fault=st.sampled_from([*FAULTS, "late", "late"]))
    def break_something(self, fault: str) -> None:
        """A host, a link or the leader fails; a late or repeated event arrives; a user changes it."""
        inflict(self.world, self.jobs, fault, self.chance)

    @rule(draw=st.integers(0, 19))
    def cancel_sometimes(self, draw: int) -> None:
        """Now and then a user gives up."""
        if draw == 0:
            inflict(self.world, self.jobs, "cancel", self.chance)

    def teardown(self) -> None:
        """Without further faults every job ends as planned."""
        if not hasattr(self, "world"):
            return
        finish(self.world, self.jobs)
        assert all(job.state in TERMINAL for job in self.jobs)
        type(self).events_folded += len(self.world.events)


def run_machine(examples: int, steps: int, derandomize: bool) -> int:
    """Run the machine; how many events were folded."""
    FaultyWorld.events_folded = 0
    run_state_machine_as_test(
        FaultyWorld,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return FaultyWorld.events_folded


def test_random_faults_break_no_invariant_and_lose_no_step() -> None:
    assert run_machine(examples=50, steps=30, derandomize=True) >= STEPS_LEAST


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_more_random_faults_break_no_invariant_either() -> None:
    assert run_machine(examples=400, steps=50, derandomize=False) >= 10 * STEPS_LEAST


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_world_with_drawn_faults_ends_as_planned(seed: int) -> None:
    world, jobs, chance = random_world(seed)
    run_out(world, jobs, chance, faults=10)
