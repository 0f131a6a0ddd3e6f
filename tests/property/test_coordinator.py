"""The coordinator under random faults: invariants after every step, exactly the planned steps.

The machine owns a modelled world (rows, hosts, links). Rules let time pass or inflict a fault; the
core checks its invariants after every step, the rows refuse double effects, and at the end every job
must have ended as planned. A new leader starts from the rows alone.
"""

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from domain.states import TERMINAL
from tests.property.machines import explore
from tests.property.worlds import FAULTS, finish, inflict, random_world, run_out
from tests.simulation.driver import World
from tests.simulation.rows import JobRow

STEPS_LEAST = 10_000
"""Events folded in the normal run."""

LEAST = 8
"""Of each fault and each event, in the normal run; of jobs that are given up a quarter of it."""

EVENTS = (
    "CheckpointWritten", "DesiredChanged", "EngineSyncFailed", "EngineSynced", "EvaluationScored",
    "GradeFailed", "GroupGraded", "HostJoined", "HostLost", "JobSubmitted", "RolloutClosed", "SandboxReady",
    "StateRestored", "StepCommitted", "Tick", "TrainerReady", "TryFailed", "TurnFinished",
)  # fmt: skip


class FaultyWorld(RuleBasedStateMachine):
    """Random faults at random times."""

    faults: ClassVar[Counter[str]] = Counter()
    """Inflicted, by kind."""
    events: ClassVar[Counter[str]] = Counter()
    """Folded, by type."""

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
        self.faults[fault] += 1
        inflict(self.world, self.jobs, fault, self.chance)

    @rule(draw=st.integers(0, 19))
    def cancel_sometimes(self, draw: int) -> None:
        """Now and then a user gives up."""
        if draw == 0:
            self.faults["cancel"] += 1
            inflict(self.world, self.jobs, "cancel", self.chance)

    def teardown(self) -> None:
        """Without further faults every job ends as planned."""
        if not hasattr(self, "world"):
            return
        finish(self.world, self.jobs)
        assert all(job.state in TERMINAL for job in self.jobs)
        self.events.update(type(event).__name__ for _, event in self.world.events)


def explore_faults(times: int, examples: int, steps: int) -> None:
    """Run the machine until all has been seen often enough."""
    faults, events = FaultyWorld.faults, FaultyWorld.events
    faults.clear()
    events.clear()
    explore(
        FaultyWorld,
        lambda: events.total() >= times * STEPS_LEAST and not rare(times * LEAST),
        examples,
        steps,
    )


def rare(least: int) -> list[str]:
    """What happened too seldom for a run to say anything of it."""
    faults, events = FaultyWorld.faults, FaultyWorld.events
    found = [f"{name}: {faults[name]}" for name in FAULTS if faults[name] < least]
    found += [f"{name}: {events[name]}" for name in EVENTS if events[name] < least]
    return found + ["cancel"] * (faults["cancel"] < least // 4)


def test_random_faults_break_no_invariant_and_lose_no_step() -> None:
    explore_faults(1, examples=50, steps=30)
    assert FaultyWorld.events.total() >= STEPS_LEAST
    assert rare(LEAST) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_more_random_faults_break_no_invariant_either() -> None:
    explore_faults(10, examples=400, steps=50)
    assert FaultyWorld.events.total() >= 10 * STEPS_LEAST
    assert rare(10 * LEAST) == []


@pytest.mark.parametrize("seed", range(12))
def test_a_drawn_world_with_drawn_faults_ends_as_planned(seed: int) -> None:
    world, jobs, chance = random_world(seed)
    run_out(world, jobs, chance, faults=10)
