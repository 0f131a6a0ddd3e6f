"""The coordinator under every strategy and all faults: invariants after every step, counted transitions.

Sentences of `scheduling.md` section 13, and where they are checked:

- slots and pages in use + free = total: `scheduler.core.invariants` and `indexes` (load and held KV of
  each host equal the records), after every step of each test here; pages of engines:
  `yards.Yards._check_pages`, after every tick
- a rollout is in exactly one place, the highest hop: `invariants` (one of host, ready, wanting,
  pending), `rows.Rows.place` (hops only rise), `yards.Yards.check` (one engine)
- a group is in at most one batch: `invariants`, `rows.Rows.assign`, `worlds.check_end`
- nothing beyond the bound enters a batch: `invariants`, `worlds.check_end`, `batches._assign`
- no job exceeds its share while another within its guarantee waits: `tests/simulation/tenants`,
  `unit/scheduler/core/test_gangs.py`
- promoted before critical before normal in every grant: `invariants` (rank and class agree),
  `yards.Yards._check_order` (no better class is passed over)
- every command names a live lease: `invariants`
- same seed, same commands under any hash seed: `test_determinism.py`
"""

from collections import Counter
from random import Random
from typing import Final

import pytest

from domain.plan import StrategyName
from domain.states import TERMINAL
from tests.property.worlds import FAULTS, finish, inflict, random_world

KINDS: Final = (*FAULTS, "late", "cancel")
"""Faults and wishes; late and repeated events twice as often."""

LEAST: Final = {
    "JobSubmitted": 70, "HostJoined": 500, "HostLost": 50, "StateRestored": 60, "SandboxReady": 1_200,
    "TurnFinished": 1_500, "TryFailed": 90, "RolloutClosed": 1_300, "GroupGraded": 600,
    "GradeFailed": 30, "EngineSynced": 250, "EngineSyncFailed": 40, "StepCommitted": 300,
    "CheckpointWritten": 300, "EvaluationScored": 40, "DesiredChanged": 120, "GrantGang": 140,
    "ReleaseGang": 80, "OpenGroup": 600, "ForkSandboxes": 700, "PlaceRollout": 1_200, "SetRanks": 400,
    "SyncEngine": 300, "GradeGroup": 600, "AssignGroup": 250, "CloseStep": 150, "EndTry": 120,
    "CloseRollout": 50, "DropGroup": 80, "WriteCheckpoint": 90, "FinishEvaluation": 40,
    "SuspendRollout": 1,
}  # fmt: skip
"""Times that each event was folded and each command given in the quick part, all strategies together."""

STEPS_LEAST: Final = 15_000


def play(strategy: StrategyName, seed: int, faults: int) -> Counter[str]:
    """One world with random faults to its end; what happened, by type."""
    world, jobs, chance = random_world(seed, strategy)
    told = Random(f"faults {seed}")
    for _ in range(faults):
        world.run_for(told.expovariate(1 / 2.5))
        kind = told.choice(KINDS)
        inflict(world, jobs, "pause" if kind == "cancel" and told.random() < 0.7 else kind, chance)
    finish(world, jobs)
    assert all(job.state in TERMINAL for job in jobs)
    counts = Counter(type(event).__name__ for _, event in world.events)
    counts["steps"] = len(world.events)
    counts.update(type(command).__name__ for _, command in world.log)
    return counts


def played(seeds: range, faults: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for strategy in StrategyName:
        for seed in seeds:
            total.update(play(strategy, seed, faults))
    return total


@pytest.mark.timeout(300)
def test_no_strategy_breaks_an_invariant_under_faults() -> None:
    counts = played(range(6), faults=10)
    assert {name: n for name, n in LEAST.items() if counts[name] < n} == {}, counts
    assert counts["steps"] >= STEPS_LEAST, counts["steps"]


def test_a_group_that_a_queue_refused_takes_the_position_that_is_left() -> None:
    """Found here: the head of one queue was passed over while another owed, and not looked at again."""
    assert play(StrategyName.ROLLFLASH, 134, faults=10)["StepCommitted"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_strategy_breaks_an_invariant_in_a_hundred_thousand_steps() -> None:
    counts = played(range(100, 140), faults=14)
    assert counts["steps"] >= 100_000, counts["steps"]
