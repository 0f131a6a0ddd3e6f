"""Pacing instead of discarding: slow tasks are trained as often as quick ones, none too old."""

from collections import Counter

import pytest

from domain.ids import RolloutId, group_of, ordinal_of
from domain.plan import Order
from domain.states import JobState
from tests.simulation.driver import Workload, World
from tests.simulation.plans import plan, pool

STEP_S = 2.0
"""Time of one step when groups are plenty: four quick groups and their update."""


def turns(rollout: RolloutId) -> int:
    """Half of the tasks last one step, the others ten."""
    return 1 if ordinal_of(group_of(rollout)) % 2 == 0 else 10


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4])
def test_tasks_of_one_and_of_ten_steps_are_trained_alike(order: Order, max_staleness: int) -> None:
    workload = Workload(turn_s=lambda rollout, turn: STEP_S, turns=turns, step_s=STEP_S / 2)
    world = World(pool(sandboxes=200), workload, slots=200)
    job = world.submit(
        plan(
            group_size=2,
            groups_per_batch=4,
            max_staleness=max_staleness,
            async_ratio=float(max_staleness + 1),
            order=order,
            max_steps=20,
            watchdog_s=600.0,
        )
    )
    shares = []
    for step in (5, 10, 15):
        world.run(lambda step=step: job.committed >= step, 20_000)  # type: ignore[misc]
        kinds = Counter(ordinal_of(g) % 2 for groups in job.steps.values() for g in groups)
        shares.append(kinds[1] / sum(kinds.values()))
    world.run(lambda: job.state is JobState.SUCCEEDED, 1_000)
    rows = world.rows.groups_of(job.plan.attempt_id)
    assert [row.opened.group_id for row in rows if row.disposition.startswith("dropped")] == []
    assert all(row.staleness is not None and row.staleness <= max_staleness for row in rows)
    # At the end all were trained: only in between can either kind be behind.
    assert all(abs(share - 0.5) <= 0.05 for share in shares), shares


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_nothing_is_discarded_while_engines_lag_and_turns_are_long(max_staleness: int) -> None:
    workload = Workload(
        turn_s=lambda rollout, turn: 1.0 + 7.0 * (ordinal_of(group_of(rollout)) % 3),
        turns=lambda rollout: 1 + ordinal_of(group_of(rollout)) % 5,
        sync_s=4.0,
    )
    world = World(pool(sandboxes=200), workload, slots=4)
    job = world.submit(
        plan(
            groups_per_batch=3,
            max_staleness=max_staleness,
            async_ratio=4.0,
            max_steps=12,
            watchdog_s=900.0,
        )
    )
    world.run(lambda: job.state is JobState.SUCCEEDED, 20_000)
    rows = world.rows.groups_of(job.plan.attempt_id)
    assert {row.disposition.partition("(")[0] for row in rows} == {"trained"}
    assert len(rows) == 36
