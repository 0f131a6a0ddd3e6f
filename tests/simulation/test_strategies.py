"""Whole jobs under every strategy: they end, within their bounds, and train the same tasks."""

from typing import Final

import pytest

from domain.commands import Command, DropGroup, EndTry, SuspendRollout
from domain.ids import RolloutId, group_of, host_id, index_of, ordinal_of, task_ordinal
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
    world, job = begin(scheduling, staleness, ratio)
    finish(world, job)
    return world, job


def finish(world: World, job: JobRow) -> None:
    world.run(lambda: job.state in (JobState.SUCCEEDED, JobState.FAILED), within_s=4000.0)


def begin(scheduling: Scheduling, staleness: int, ratio: float) -> tuple[World, JobRow]:
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


@pytest.mark.parametrize(
    ("strategy", "knobs", "kind"),
    [
        (StrategyName.SLIME_SYNC, {"over_sampling": 2.0}, DropGroup),
        (StrategyName.SLIME_BOUNDED, {"lag_max": 0.0, "poll_s": 0.0}, DropGroup),
        (StrategyName.ROLLFLASH, {"rollart": 1.0, "env_groups": 12.0}, EndTry),
        (StrategyName.ROLLFLASH, {"env_groups": 12.0}, DropGroup),
        (StrategyName.THUNDERAGENT_UPSTREAM, {}, SuspendRollout),
        (StrategyName.THUNDERAGENT_PAPER, {"decay": 0.0}, SuspendRollout),
        (StrategyName.AIMD, {"in_flight_first": 40.0, "in_flight_min": 4.0, "poll_s": 1.0}, EndTry),
        (
            StrategyName.AIMD,
            {"in_flight_first": 40.0, "in_flight_min": 4.0, "poll_s": 1.0, "cancels": 0.0},
            SuspendRollout,
        ),
    ],
)
def test_what_a_strategy_throws_away_or_pauses_is_trained_in_the_end(
    strategy: StrategyName, knobs: dict[str, float], kind: type[Command]
) -> None:
    world, job = run(Scheduling(strategy, knobs=tuple(knobs.items())), ratio=3.0)
    assert job.state is JobState.SUCCEEDED
    assert world.commands(kind), "the run must have done what this test is about"
    assert trained(world, job) == list(range(STEPS * BATCH))


@pytest.mark.parametrize("strategy", list(StrategyName))
@pytest.mark.parametrize("fault", ["leader", "engine"])
def test_every_strategy_ends_its_job_after_a_loss(strategy: StrategyName, fault: str) -> None:
    world, job = begin(Scheduling(strategy), staleness=2, ratio=2.0)
    world.run_for(20.0)
    if fault == "leader":
        world.restart_leader(down_s=1.5)
    else:
        world.kill(host_id(job.plan.attempt_id, "engine0"))
    finish(world, job)
    assert job.state is JobState.SUCCEEDED
    assert sorted(job.steps) == list(range(1, STEPS + 1))
