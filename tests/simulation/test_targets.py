"""Jobs that an evaluation's number ends before their last step."""

from dataclasses import replace

import pytest

from domain.commands import FinishEvaluation, WriteCheckpoint
from domain.ids import host_id, node_host_id
from domain.plan import EvaluationPlan, JobLimits, Priority
from domain.states import Desired, JobState
from tests.simulation.driver import Workload, World
from tests.simulation.plans import POOL, plan
from tests.simulation.rows import JobRow

JOB = replace(
    plan(max_steps=30, evaluation=EvaluationPlan(3, 1, 2)), target_eval=0.6, checkpoint_every=100
)
"""Evaluated every second step; no checkpoint is due but for the target."""

LEARNING = Workload(score=lambda step: step / 10)
"""Reaches the target at step 6."""


def reached(world: World, job: JobRow, at: int = 6) -> None:
    """Run to the end; it came soon after that step, with checkpoints of what counts."""
    world.run(lambda: job.state in (JobState.SUCCEEDED, JobState.FAILED), 2000.0)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "target_reached")
    assert at <= job.committed <= at + 3
    assert job.committed in job.evaluated
    assert job.checkpoint_step == (job.committed or None)
    written = {c.step for c in world.commands(WriteCheckpoint) if isinstance(c, WriteCheckpoint)}
    assert at in written or at == 0
    for row in world.rows.groups_of(job.plan.attempt_id):
        assert row.disposition != "pending", row.opened.group_id


def test_a_job_ends_at_its_target_with_a_checkpoint_of_that_step() -> None:
    world = World(POOL, LEARNING)
    reached(world, world.submit(JOB))


@pytest.mark.parametrize("at_s", [3.0, 6.2, 9.1, 14.3, 19.7, 25.0])
@pytest.mark.parametrize("kind", ["leader", "trainer", "engine", "node"])
def test_whatever_dies_the_target_ends_the_job(kind: str, at_s: float) -> None:
    world = World(POOL, LEARNING)
    job = world.submit(JOB)
    world.run_for(at_s)
    if kind == "leader":
        world.restart_leader(down_s=1.7)
    else:
        name = node_host_id(0) if kind == "node" else host_id(JOB.attempt_id, _role(kind))
        world.kill(name)
    reached(world, job)


def _role(kind: str) -> str:
    return "trainer" if kind == "trainer" else "engine0"


def test_a_leader_that_dies_before_it_hears_of_the_number_reads_it() -> None:
    world = World(POOL, LEARNING)
    job = world.submit(JOB)

    def is_finished() -> bool:
        done = world.commands(FinishEvaluation)
        return any(isinstance(one, FinishEvaluation) and one.step == 6 for one in done)

    world.run(is_finished, 2000.0)
    world.restart_leader(down_s=1.7)
    reached(world, job)


def test_a_number_that_is_reached_at_the_start_trains_nothing_more_than_had_begun() -> None:
    world = World(POOL, Workload(score=lambda step: 1.0, turn_s=lambda rollout, turn: 3.0))
    job = world.submit(JOB)
    reached(world, job, at=0)


def test_a_missed_or_missing_number_ends_nothing() -> None:
    world = World(POOL, Workload(score=lambda step: 0.59 if step else None))
    job = world.submit(replace(JOB, max_steps=4))
    world.run(lambda: job.state is JobState.SUCCEEDED, 2000.0)
    assert (job.committed, job.reason) == (4, None)


def test_a_raised_limit_does_not_revive_a_job_at_its_target() -> None:
    world = World(POOL, LEARNING)
    job = world.submit(JOB)
    world.run(lambda: 6 in job.scores, 2000.0)
    world.limit(job, JobLimits(100, Priority.HIGH))
    reached(world, job)


def test_a_pause_at_the_target_ends_the_job_when_it_is_resumed() -> None:
    world = World(POOL, LEARNING)
    job = world.submit(JOB)
    world.run(lambda: 6 in job.scores, 2000.0)
    world.desire(job, Desired.PAUSE)
    world.run(lambda: job.state in (JobState.PAUSED, JobState.SUCCEEDED), 2000.0)
    if job.state is JobState.PAUSED:
        world.desire(job, Desired.RUN)
    reached(world, job)
