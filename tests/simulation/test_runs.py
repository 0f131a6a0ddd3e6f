"""Whole jobs on modelled hosts, without faults."""

from domain.plan import EvaluationPlan
from domain.states import JobState
from tests.simulation.driver import World
from tests.simulation.plans import POOL, plan


def test_a_job_reaches_exactly_its_planned_steps_and_succeeds() -> None:
    world = World(POOL)
    job = world.submit(plan(max_steps=5))
    world.run(lambda: job.state is JobState.SUCCEEDED, within_s=200)
    assert sorted(job.steps) == [1, 2, 3, 4, 5]
    assert job.checkpoint_step == 5


def test_evaluations_run_at_step_zero_and_the_last_under_one_version() -> None:
    world = World(POOL)
    job = world.submit(plan(evaluation=EvaluationPlan(10, 2, None)))
    world.run(lambda: job.state is JobState.SUCCEEDED, within_s=300)
    assert job.evaluated == [0, 4]
