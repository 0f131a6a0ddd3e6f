"""Whole jobs under every strategy: they end, within their bounds, and train the same tasks."""

from typing import Final

import pytest

from domain.ids import RolloutId, group_of, index_of, ordinal_of, task_ordinal
from domain.plan import Scheduling, StrategyName
from domain.states import JobState
from tests.simulation.driver import Workload, World
from tests.simulation.plans import plan, pool
from tests.simulation.rows import JobRow

STEPS: Final = 8
BATCH: Final = 4
KV_TOKENS: Final = 400
"""Room for about half of the contexts that are in flight."""


def turns(rollout: RolloutId) -> int:
    """Some tasks are ten times as long as others, repeats of a task like the task."""
    task = task_ordinal(ordinal_of(group_of(rollout)))
    return 2 + (task * 7 + index_of(rollout) * 3) % 9 + (20 if task % 5 == 0 else 0)


def run(scheduling: Scheduling, staleness: int = 2, ratio: float = 2.0) -> tuple[World, JobRow]:
    world = World(pool(), Workload(turns=turns), slots=6, kv_tokens=KV_TOKENS)
    job = world.submit(
        plan(
            groups_per_batch=BATCH,
            group_size=3,
            max_steps=STEPS,
            max_staleness=staleness,
            async_ratio=ratio,
            scheduling=scheduling,
        )
    )
    world.run(lambda: job.state in (JobState.SUCCEEDED, JobState.FAILED), within_s=4000.0)
    return world, job


def trained(world: World, job: JobRow) -> list[int]:
    rows = world.rows.groups_of(job.plan.attempt_id)
    taken = [row for row in rows if row.disposition.startswith("trained")]
    return sorted(task_ordinal(ordinal_of(row.opened.group_id)) for row in taken)


@pytest.mark.parametrize("strategy", list(StrategyName))
@pytest.mark.parametrize(("staleness", "ratio"), [(0, 1.0), (1, 1.5), (2, 2.0)])
def test_every_strategy_trains_the_same_tasks_once(
    strategy: StrategyName, staleness: int, ratio: float
) -> None:
    world, job = run(Scheduling(strategy), staleness, ratio)
    assert job.state is JobState.SUCCEEDED
    assert trained(world, job) == list(range(STEPS * BATCH))
