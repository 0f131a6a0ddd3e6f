"""Jobs on several environments, to train on and to evaluate on, on a running platform."""

import signal
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.integration.jobs.test_jobs import ENDS_WITHIN_S, submitted, succeeded
from tests.support import requires
from tests.support.job_rows import JobRows
from tests.support.stack import Stack
from tests.support.waiting import wait_until
from tests.support.whole_job import assert_whole
from venusrl.models.jobs import Evaluation, Job

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

TASKS: Final = 4
LIMIT: Final = 3

TWO: Final = {
    "environments": [
        {"ref": "calc", "limit": LIMIT, "max_turns": 1},
        {"ref": "diary", "weight": 3.0, "split": "train"},
    ],
    "tasks": TASKS,
    "rollouts_per_task": 2,
    "every_steps": 1,
    "select_best": "diary/coin",
}
"""Calc is cut after one turn and has three tasks; diary takes three turns and has many."""


def test_evaluations_on_two_environments_survive_the_death_of_every_process(
    stack: Stack,
) -> None:
    job = submitted(stack, evaluation=TWO)
    wait_until(lambda: opened(stack, job) >= 3, ENDS_WITHIN_S, "no evaluation begins")
    for kind in ("node", "engine", "leader"):
        kill(stack, job, kind)
    rows = succeeded(stack, job)
    found = stack.client.jobs.evaluations(job.id)
    assert [one.step for one in found] == [0, 1, 2, 3]
    for one in found:
        assert one.tasks == LIMIT + TASKS
        assert [(part.name, part.weight, part.tasks) for part in one.environments] == [
            ("calc", 1.0, LIMIT), ("diary", 3.0, TASKS),
        ]  # fmt: skip
        assert_total(one)
    assert_packages(stack, rows)
    assert_apart(stack, job, found)
    assert_best(stack, job, found)


def kill(stack: Stack, job: Job, kind: str) -> None:
    """SIGKILL every process of this kind, and wait until evaluation goes on."""
    seen = opened(stack, job)
    leader = stack.leader()
    for victim in [leader] if kind == "leader" and leader else stack.hosts(kind):
        victim.send(signal.SIGKILL)

    def goes_on() -> bool:
        return opened(stack, job) > seen or stack.client.jobs.get(job.id).ended_at is not None

    wait_until(goes_on, ENDS_WITHIN_S, f"nothing opens after the death of {kind}")


def opened(stack: Stack, job: Job) -> int:
    """Evaluation groups so far."""
    query = "select count(*) from rollout_group where job_id = %s and purpose = 'evaluation'"
    return int(stack.query(query, job.id)[0][0])


def assert_total(one: Evaluation) -> None:
    """Every scored rollout counts with the weight of its environment."""
    parts = [p for p in one.environments if p.score is not None]
    whole = sum(p.weight * p.scored for p in parts)
    assert one.score == pytest.approx(
        sum(p.weight * p.scored * (p.score or 0) for p in parts) / whole
    )


def assert_packages(stack: Stack, rows: JobRows) -> None:
    """Each group ran the package, the tasks and the limits of its own environment."""
    query = "select v.id, e.name from environment_version v join environment e on e.id = v.environment_id"
    names = dict(stack.query(query))
    groups = [group for group in rows.groups if group["purpose"] == "evaluation"]
    assert {(g["environment"], names[g["environment_version_id"]]) for g in groups} == {
        (0, "calc"), (1, "diary"),
    }  # fmt: skip
    by_id = {group["id"]: group for group in groups}
    for group in groups:
        split = ("test-", "train-")[group["environment"]]
        assert group["task_id"].startswith(split), group
    calc = {group["task_id"] for group in groups if group["environment"] == 0}
    assert len(calc) == 3
    for rollout in rows.rollouts:
        if rollout["group_id"] not in by_id or rollout["verdict"] != "scored":
            continue
        environment = by_id[rollout["group_id"]]["environment"]
        reward, turns = (("correct", 1), ("coin", 3))[environment]
        assert set(rollout["components"]["rewards"]) == {reward}
        assert rollout["turns"] <= turns


def assert_apart(stack: Stack, job: Job, found: Sequence[Evaluation]) -> None:
    """Series by environment, and all of it in the bucket of evaluations."""
    points = {(p.step, p.name): p.value for p in stack.client.jobs.metrics(job.id)}
    for one in found:
        for part in one.environments:
            if part.score is not None:
                assert points[(one.step, f"evaluation/{part.name}/score")] == part.score
    buckets = stack.query(
        "select distinct bucket from rollout where job_id = %s and purpose = 'evaluation'", job.id
    )
    assert {row[0] for row in buckets} <= {"evaluation", "infrastructure"}


def assert_best(stack: Stack, job: Job, found: Sequence[Evaluation]) -> None:
    """The best checkpoint is that of the evaluated step where diary's reward was highest."""
    by_step = {one.step: one.environments[1].components.get("coin") for one in found}
    assert {one.step: one.selected for one in found} == by_step
    ready = [one for one in stack.client.checkpoints.list(job.id) if one.state == "ready"]
    best = max(ready, key=lambda one: (by_step[one.step] or -1.0, one.step))
    assert [one.id for one in ready if one.is_best] == [best.id]
    assert stack.client.jobs.get(job.id).best_checkpoint == best.id


def test_a_job_trains_on_two_environments_by_weight_and_its_branch_goes_on(stack: Stack) -> None:
    uses: list[dict[str, Any]] = [
        {"ref": "diary", "weight": 3.0},
        {"ref": "diary", "name": "other", "split": "test", "limit": 5},
    ]
    job = submitted(stack, environments=uses, stop={"max_steps": 3}, evaluation={"tasks": 2})
    rows = succeeded(stack, job)
    trained = [group for group in rows.groups if group["purpose"] == "train"]
    assert {(g["environment"], g["task_id"].partition("-")[0]) for g in trained} == {
        (0, "train"), (1, "test"),
    }  # fmt: skip
    last = stack.client.jobs.evaluations(job.id)[-1]
    assert [part.name for part in last.environments] == ["diary", "other"]
    names = {point.name for point in stack.client.jobs.metrics(job.id)}
    assert {"diary/reward_mean", "diary/rollouts"} <= names
    branch = stack.client.jobs.branch(job.id, overrides={"stop": {"max_steps": 4}})
    again = succeeded(stack, branch)
    ordinals = {group["ordinal"] for group in again.groups if group["purpose"] == "train"}
    start = again.attempts[0]
    assert min(ordinals) in {start["next_ordinal"], *start["unconsumed"]}


def test_a_job_ends_when_an_evaluation_reaches_its_target(stack: Stack) -> None:
    evaluated = {"tasks": 4, "every_steps": 1, "select_best": "coin"}
    job = submitted(stack, evaluation=evaluated, stop={"max_steps": 400, "target_eval": 0.01})
    ended = stack.client.jobs.wait(job.id, ENDS_WITHIN_S)
    assert (ended.state, ended.queue_reason) == ("succeeded", "target_reached")
    found = stack.client.jobs.evaluations(job.id)
    reached = next(one.step for one in found if (one.selected or 0.0) >= 0.01)
    last = max(int(row[0]) for row in stack.query(STEPS, job.id))
    assert reached <= last <= reached + 4
    assert_whole(stack, job.id, last)
    kept = {one.step for one in stack.client.checkpoints.list(job.id) if one.state == "ready"}
    assert last in kept or last == 0
    assert stack.client.jobs.get(job.id).best_checkpoint is not None or last == 0


STEPS: Final = "select step from train_step where job_id = %s"


def test_epochs_over_the_tasks_that_a_filter_lets_through_end_a_job(stack: Stack) -> None:
    use = {"ref": "calc", "filter": {"operands": 2}, "limit": 9}
    job = submitted(stack, environments=[use], stop={"max_epochs": 1.0})
    rows = succeeded(stack, job)
    assert rows.spec["stop"]["max_steps"] == 4
    said = {one["pointer"]: one["reason"] for one in rows.spec["resolved"]}
    assert said["/stop/max_steps"] == "1 epochs of 9 tasks in batches of 2"
    trained = {group["task_id"] for group in rows.groups if group["purpose"] == "train"}
    assert len(trained) <= 9


def test_a_filter_that_no_task_passes_fails_the_job_and_is_named(stack: Stack) -> None:
    use = {"ref": "calc", "filter": {"operands": 77}}
    job = submitted(stack, environments=[use])
    failed = stack.client.jobs.wait_for(job.id, ["failed"], ENDS_WITHIN_S)
    assert failed.failure is not None
    assert failed.failure.code == "filter_matches_nothing"
    assert "/environments/0/filter" in (failed.failure.hint or "")
