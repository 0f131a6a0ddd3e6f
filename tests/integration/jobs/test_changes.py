"""Jobs that their users change while they run, and branches, on a running platform."""

from typing import Any, Final

import pytest

from tests.support import requires
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


def submitted(stack: Stack, **changes: Any) -> Job:
    """A job on one engine host."""
    return stack.client.jobs.create(small_job("diary", **{"resources": ONE_ENGINE, **changes}))


def after_step(stack: Stack, job: Job, step: int) -> None:
    """Wait until that step has a row."""
    query = "select 1 from train_step where job_id = %s and step = %s"
    wait_until(lambda: stack.query(query, job.id, step), ENDS_WITHIN_S, f"step {step} never came")


def test_a_job_ends_early_when_its_last_step_is_lowered_and_its_branch_goes_on(
    stack: Stack,
) -> None:
    job = submitted(stack, stop={"max_steps": 400}, evaluation={"tasks": 4})
    after_step(stack, job, 1)
    changed = stack.client.jobs.update(job.id, max_steps=1, etag=stack.client.jobs.etag(job.id))
    assert changed.spec["stop"]["max_steps"] == 1
    ended = stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    ((last,),) = stack.query("select max(step) from train_step where job_id = %s", job.id)
    assert 1 <= last < 20, "what was committed stays, and no more came"
    assert_whole(stack, job.id, last_step=last)
    evaluated = {one.step for one in stack.client.jobs.evaluations(job.id)}
    assert evaluated == {0, last}
    assert ended.observed_generation == ended.generation

    overrides = {"stop": {"max_steps": last + 2}, "optimizer": {"lr": 1e-4}, "evaluation": None}
    branch = stack.client.jobs.branch(job.id, name="branch", overrides=overrides)
    stack.client.jobs.wait(branch.id, ENDS_WITHIN_S)
    made = assert_whole(stack, branch.id)
    assert [step["step"] for step in made.steps_of(made.attempts[0])] == [last, last + 1, last + 2]
    newest = next(stack.client.checkpoints.list(job.id, newest_first=True))
    start = made.attempts[0]
    assert (start["from_checkpoint_id"], start["base_step"]) == (newest.id, last)
    assert stack.client.jobs.get(job.id).state == "succeeded"
    assert_released(stack)


def test_a_job_goes_on_when_its_last_step_is_raised(stack: Stack) -> None:
    job = submitted(stack, stop={"max_steps": 3})
    after_step(stack, job, 1)
    stack.client.jobs.update(job.id, max_steps=5)
    stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    rows = assert_whole(stack, job.id)
    assert [step["step"] for step in rows.steps_of(rows.attempts[0])] == list(range(6))
    assert len(rows.attempts) == 1
    assert_released(stack)


def test_a_job_pauses_at_its_budget_and_goes_on_with_a_higher_one(stack: Stack) -> None:
    environments = [{"ref": "diary", "wall_s": 10}]
    job = submitted(
        stack,
        stop={"max_steps": 400},
        environments=environments,
        budget={"max_wall_hours": 0.004, "warn_at": 0.5},
    )
    paused = stack.client.jobs.wait_for(job.id, ["paused"], ENDS_WITHIN_S)
    assert paused.state == "paused"
    assert (paused.queue_reason or "").startswith("budget: ")
    warned = list(stack.client.jobs.events(job.id, types=["job.budget_warning"]))
    assert [one.body["max_wall_hours"] for one in warned] == [0.004]
    assert_released(stack)
    step = int(stack.client.jobs.progress(job.id)["step"])
    stack.client.jobs.update(job.id, budget={"max_wall_hours": 1.0}, max_steps=step + 1)
    assert stack.client.jobs.get(job.id).state == "paused", "a change is no wish to run"
    stack.client.jobs.resume(job.id)
    stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    assert_whole(stack, job.id)
