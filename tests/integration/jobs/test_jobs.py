"""A job's life through the API: to the end, paused and resumed, cancelled, restarted, queued.

One file, since each file that asks for the stack starts one.
"""

from typing import Any, Final

import pytest

from tests.support import requires
from tests.support.job_rows import JobRows
from tests.support.specs import small_job
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_released, assert_whole
from venusrl.models.jobs import Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S: Final = 150.0
"""A job of three steps takes ten seconds on idle cores; tests share them with each other."""

ONE_ENGINE: Final = {"rollout_gpus": {"min": 1, "max": 1}}


EVALUATED: Final = {"tasks": 8, "rollouts_per_task": 2, "every_steps": 2}
"""At steps 0, 2 and, the last one, 3."""


def submitted(stack: Stack, environment: str = "diary", **changes: Any) -> Job:
    """A job on one engine host unless said otherwise."""
    return stack.client.jobs.create(small_job(environment, **{"resources": ONE_ENGINE, **changes}))


def after_step(stack: Stack, job: Job, step: int) -> None:
    """Wait until that step has a row."""
    query = "select 1 from train_step where job_id = %s and step = %s"
    wait_until(lambda: stack.query(query, job.id, step), ENDS_WITHIN_S, f"step {step} never came")


def succeeded(stack: Stack, job: Job) -> JobRows:
    """The rows of the job once it succeeded, everything in them consistent."""
    stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    return assert_whole(stack, job.id)


def test_job_trains_on_two_engine_hosts_and_leaves_nothing_behind(stack: Stack) -> None:
    two = {"rollout_gpus": {"min": 2, "max": 2}}
    job = submitted(stack, "calc", resources=two, evaluation=EVALUATED)
    rows = succeeded(stack, job)
    assert len({rollout["host_id"] for rollout in rows.rollouts}) == 2
    evaluated = stack.client.jobs.evaluations(job.id)
    assert [(one.step, one.tasks, one.scored) for one in evaluated] == [
        (0, 8, 16), (2, 8, 16), (3, 8, 16),
    ]  # fmt: skip
    for one in evaluated:
        assert [each.name for each in one.estimates] == ["avg@2", "pass@1", "pass@2"]
        assert one.estimates[0].value == pytest.approx(one.score)
    newest = list(stack.client.checkpoints.list(job.id))[-1]
    assert (newest.step, newest.score) == (3, evaluated[-1].score)
    assert stack.client.jobs.ledger(job.id).rollouts == len(rows.rollouts)
    assert_released(stack)


def test_paused_job_gives_its_hosts_back_and_goes_on_at_the_next_step(stack: Stack) -> None:
    job = submitted(stack, stop={"max_steps": 6})
    after_step(stack, job, 1)
    stack.client.jobs.pause(job.id)
    paused = stack.client.jobs.wait_for(job.id, ["paused"], ENDS_WITHIN_S)
    assert paused.state == "paused"
    assert_released(stack)
    newest = next(stack.client.checkpoints.list(job.id, newest_first=True))
    stack.client.jobs.resume(job.id)
    rows = succeeded(stack, job)
    assert [attempt["id"] for attempt in rows.attempts] == [paused.attempt_id]
    assert 1 <= newest.step < 6


def test_cancelled_job_holds_nothing_and_restarts_from_its_checkpoint(stack: Stack) -> None:
    job = submitted(stack, stop={"max_steps": 6})
    after_step(stack, job, 1)
    stack.client.jobs.cancel(job.id)
    cancelled = stack.client.jobs.wait_for(job.id, ["cancelled"], ENDS_WITHIN_S)
    assert cancelled.state == "cancelled"
    assert_released(stack)
    newest = next(stack.client.checkpoints.list(job.id, newest_first=True))
    stack.client.jobs.restart(job.id, newest.id)
    rows = succeeded(stack, job)
    first, second = rows.attempts
    assert (second["from_checkpoint_id"], second["base_step"]) == (newest.id, newest.step)
    assert [step["step"] for step in rows.steps_of(second)] == list(range(newest.step, 7))
    assert first["ended_at"] is not None


def test_second_job_queues_with_its_position_and_reason_until_the_first_ends(stack: Stack) -> None:
    first = submitted(stack, stop={"max_steps": 4})
    stack.client.jobs.wait_for(first.id, ["provisioning", "running"], ENDS_WITHIN_S)
    second = submitted(stack, stop={"max_steps": 2})
    queued = wait_until(lambda: _queued(stack, second), ENDS_WITHIN_S, "it does not queue")
    assert queued is not None
    assert (queued.queue_position, bool(queued.queue_reason)) == (1, True)
    succeeded(stack, first)
    rows = succeeded(stack, second)
    assert rows.job["queue_position"] is None
    assert_released(stack)


def _queued(stack: Stack, job: Job) -> Job | None:
    now = stack.client.jobs.get(job.id)
    return now if now.state == "queued" and now.queue_position is not None else None
