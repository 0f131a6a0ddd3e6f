"""Evaluations on several environments as rows, metrics and answers; the best checkpoint."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from domain.commands import FinishEvaluation
from domain.evaluations import EvaluatedUse
from domain.ids import AttemptId, group_id, rollout_id
from stores import tables as t
from stores.system import evaluations
from stores.system.evaluations import Evaluated
from tests.integration.api.world import Tenant
from venusrl.cli.app import app

EASY, HARD = EvaluatedUse("easy", "calc@1"), EvaluatedUse("hard", "shell@1", 3.0)


def group(tenant: Tenant, job: dict[str, Any], place: tuple[int, int, int], **member: Any) -> None:
    """A graded evaluation group of one rollout: step, number and environment."""
    step, number, environment = place
    attempt = AttemptId(job["attempt_id"])
    id = group_id(attempt, 900_000_000 + 10_000 * step + number)
    shared = {
        "job_id": job["id"], "attempt_id": attempt, "organization_id": tenant.organization_id,
        "task_id": f"task-{number}", "purpose": "evaluation",
    }  # fmt: skip
    tenant.world.add(
        t.rollout_group, id=id, ordinal=900_000_000 + 10_000 * step + number,
        environment_version_id="ev", environment=environment, policy_version=step, size=1, open=0,
        **shared,
    )  # fmt: skip
    tenant.world.add(
        t.rollout, id=rollout_id(id, 0), group_id=id, index=0, end="done", **shared, **member
    )


def scored(reward: float, **components: Any) -> dict[str, Any]:
    """A scored rollout."""
    return {"verdict": "scored", "reward": reward, "components": components}


def finish(tenant: Tenant, job: dict[str, Any], step: int, rules: Evaluated) -> Any:
    """End the evaluation of a step as the leader does."""
    command = FinishEvaluation(AttemptId(job["attempt_id"]), step)
    return tenant.world.run(lambda c: evaluations.finish_evaluation(c, command, rules))


def test_each_environment_is_shown_and_measured_apart_and_the_total_by_weight(
    tenant: Tenant,
) -> None:
    job = tenant.ended()
    rewards = {"right": 1.0, "style": {"unscorable": "raised"}}
    group(tenant, job, (2, 0, 0), **scored(1.0, rewards=rewards, metrics={"calls": 4.0}))
    group(tenant, job, (2, 1, 1), **scored(0.5, rewards={"right": 0.5}))
    group(tenant, job, (2, 2, 0), **scored(0.0, rewards={"right": 0.0}, metrics={"calls": 2.0}))
    group(tenant, job, (2, 3, 1), verdict="unscorable", unscorable_reason="raised")
    rules = Evaluated((EASY, HARD), is_apart=True, select_best="hard/score")
    for _ in range(2):
        finish(tenant, job, 2, rules)
    with tenant.sdk() as client:
        (one,) = client.jobs.evaluations(job["id"])
        points = {p.name: p.value for p in client.jobs.metrics(job["id"])}
    assert (one.tasks, one.scored, one.unscorable) == (4, 3, 1)
    assert one.score == pytest.approx((1.0 + 0.0 + 3 * 0.5) / (1 + 1 + 3))
    assert one.selected == 0.5
    assert one.components == {"calls": 3.0, "right": pytest.approx(2.5 / 5)}
    easy, hard = one.environments
    assert (easy.name, easy.tasks, easy.scored, easy.score) == ("easy", 2, 2, 0.5)
    assert (hard.name, hard.ref, hard.weight, hard.unscorable) == ("hard", "shell@1", 3.0, 1)
    assert easy.components == {"right": 0.5, "calls": 3.0}
    assert points["evaluation/score"] == one.score
    assert (points["evaluation/easy/score"], points["evaluation/hard/score"]) == (0.5, 0.5)
    assert points["evaluation/hard/pass@1"] == 0.0
    assert {e.name for e in hard.estimates} == {"avg@1", "pass@1"}


def test_an_evaluation_of_the_jobs_own_environment_has_only_its_total(tenant: Tenant) -> None:
    job = tenant.ended()
    group(tenant, job, (0, 0, 0), **scored(0.25))
    rules = Evaluated((EvaluatedUse("calc", "calc@1"),), is_apart=False)
    finish(tenant, job, 0, rules)
    with tenant.sdk() as client:
        (one,) = client.jobs.evaluations(job["id"])
        names = {point.name for point in client.jobs.metrics(job["id"])}
    assert (one.score, one.selected, one.environments) == (0.25, 0.25, [])
    assert names == {"evaluation/score", "evaluation/avg@1", "evaluation/pass@1"}


def test_a_rollout_passes_with_the_full_marks_that_its_verdict_names(tenant: Tenant) -> None:
    """Weights 1+1+2 and 0.5; verdicts that say nothing of it are those of a weight of 1."""
    job = tenant.ended()
    old = EvaluatedUse("old", "old@1")
    marks = (4.0, 0.5)
    for number, (environment, reward) in enumerate([(0, 1.0), (0, 3.0), (0, 4.0), (1, 0.5)]):
        group(
            tenant, job, (0, number, environment), **scored(reward, full_marks=marks[environment])
        )
    group(tenant, job, (0, 4, 1), verdict="unscorable", unscorable_reason="raised")
    group(tenant, job, (0, 5, 2), **scored(1.0, rewards={"right": 1.0}))
    group(tenant, job, (0, 6, 2), verdict="scored", reward=0.5)
    finish(tenant, job, 0, Evaluated((EASY, HARD, old), is_apart=True))
    with tenant.sdk() as client:
        (one,) = client.jobs.evaluations(job["id"])
        points = {point.name: point.value for point in client.jobs.metrics(job["id"])}
    passed = [points[f"evaluation/{name}/pass@1"] for name in ("easy", "hard", "old")]
    assert passed == [pytest.approx(1 / 3), 1.0, 0.5]
    assert points["evaluation/pass@1"] == pytest.approx((1 + 3 * 1 + 1) / (3 + 3 * 1 + 2))
    assert all("full_marks" not in shown.components for shown in one.environments)


def test_an_evaluation_without_the_selected_number_chooses_nothing(tenant: Tenant) -> None:
    job = tenant.ended()
    group(tenant, job, (0, 0, 0), **scored(0.25))
    finish(tenant, job, 0, Evaluated((EASY,), is_apart=True, select_best="speed"))
    tenant.checkpoint(job, step=0)
    with tenant.sdk() as client:
        assert client.jobs.evaluations(job["id"])[0].selected is None
        assert client.jobs.get(job["id"]).best_checkpoint is None


def test_the_best_checkpoint_is_the_latest_ready_one_with_the_highest_number(
    tenant: Tenant,
) -> None:
    job = tenant.ended()
    values = {"tasks": 1, "scored": 1, "unscorable": 0, "seconds": 1.0, "score": 0.0}
    for step, selected in ((2, 0.75), (4, 0.5), (6, 0.75), (8, 0.9), (10, None)):
        tenant.world.add(
            t.evaluation, attempt_id=job["attempt_id"], step=step, selected=selected, **values
        )
    made = {step: tenant.checkpoint(job, step=step) for step in (2, 4, 6, 10, 12)}
    tenant.checkpoint(job, step=8, state="expired")
    with tenant.sdk() as client:
        assert client.jobs.get(job["id"]).best_checkpoint == made[6]
        assert [one.best_checkpoint for one in client.jobs.list()] == [made[6]]
        listed = {one.step: one for one in client.checkpoints.list(job["id"])}
        assert client.checkpoints.get(made[6]).is_best
    assert [step for step, one in listed.items() if one.is_best] == [6]
    assert (listed[4].selected, listed[12].selected) == (0.5, None)


def test_the_command_line_shows_the_total_each_environment_and_the_best_checkpoint(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tenant.ended()
    group(tenant, job, (2, 0, 0), **scored(1.0))
    group(tenant, job, (2, 1, 1), **scored(0.0))
    finish(tenant, job, 2, Evaluated((EASY, HARD), is_apart=True))
    best = tenant.checkpoint(job, step=2)
    monkeypatch.setenv("VENUS_API_URL", tenant.world.address)
    monkeypatch.setenv("VENUS_API_KEY", tenant.key)

    def venus(*arguments: str) -> str:
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.stderr
        return done.stdout

    shown = venus("jobs", "evaluations", job["id"])
    assert [line.split()[:1] for line in shown.splitlines()[-2:]] == [["easy"], ["hard"]]
    assert "0.250" in shown
    assert json.loads(venus("jobs", "evaluations", job["id"], "--json"))[0]["selected"] == 0.25
    assert best in venus("jobs", "get", job["id"])
    assert "best" in venus("checkpoints", "list", job["id"])
