"""Waiting for jobs, versions and operations, on a clock that only sleeping moves."""

from typing import Any

import pytest

from tests.unit.venusrl.client.playing import Script, answers, job
from venusrl._waiting import Waiting
from venusrl.client import (
    EnvironmentInvalid,
    JobCancelled,
    JobFailed,
    JobPaused,
    OperationFailed,
    WaitTimeout,
)
from venusrl.models.checkpoints import Operation
from venusrl.models.environments import EnvironmentVersion


def version(**changes: Any) -> dict[str, Any]:
    """A version as the API shows it."""
    return {
        "id": "ev_1",
        "environment": "calc",
        "version": 1,
        "ref": "calc@1",
        "content_sha": "s",
        "state": "validating",
        "created_at": "2026-01-01T00:00:00Z",
        **changes,
    }


def operation(**changes: Any) -> dict[str, Any]:
    """An operation as the API shows it."""
    created = {"created_at": "2026-01-01T00:00:00Z"}
    return {"id": "op_1", "kind": "generate", "state": "pending", **created, **changes}


def test_polls_grow_and_the_last_one_is_at_the_deadline() -> None:
    slept: list[float] = []
    waiting = Waiting(lambda: sum(slept))
    polls = 0
    for pause in waiting.pauses(10.0):
        slept.append(pause)
        polls += 1
    assert sum(slept) == pytest.approx(10.0)
    assert slept[:2] == [0.0, 0.1]
    assert max(slept) <= 2.0
    assert polls == len(slept)


def test_a_job_is_waited_for_until_it_succeeds() -> None:
    states = ("queued", "running", "running", "succeeded")
    script = Script(answers(*(job(state=state) for state in states)))
    assert script.client().jobs.wait("job_1").state == "succeeded"
    assert len(script.requests) == 4


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"state": "failed"}, JobFailed),
        ({"state": "failed", "failure": {"code": "no_signal", "hint": "harder"}}, JobFailed),
        ({"state": "cancelled"}, JobCancelled),
        (
            {"state": "paused", "desired": "pause", "generation": 2, "observed_generation": 2},
            JobPaused,
        ),
    ],
)
def test_a_job_that_will_not_succeed_raises(changes: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Script(answers(job(**changes))).client().jobs.wait("job_1")


def test_a_job_that_is_about_to_resume_is_waited_for() -> None:
    resuming = job(state="paused", desired="run", generation=3, observed_generation=2)
    script = Script(answers(resuming, job(state="succeeded")))
    assert script.client().jobs.wait("job_1").state == "succeeded"


def test_a_job_that_takes_too_long_raises_timeout() -> None:
    script = Script(answers(job()))
    with pytest.raises(WaitTimeout):
        script.client().jobs.wait("job_1", timeout_s=5.0)
    assert sum(script.slept) == pytest.approx(5.0)


def test_a_state_is_waited_for_or_the_end() -> None:
    script = Script(answers(job(), job(state="paused")))
    assert script.client().jobs.wait_for("job_1", ["paused"]).state == "paused"
    script = Script(answers(job(), job(state="failed")))
    assert script.client().jobs.wait_for("job_1", ["paused"]).state == "failed"


def test_a_version_is_waited_for_until_it_is_ready() -> None:
    script = Script(answers(version(), version(state="ready", splits={"train": 2})))
    first = EnvironmentVersion.model_validate(version())
    assert script.client().environments.wait(first).splits == {"train": 2}
    assert script.requests[0].url.path == "/v1/environments/calc/versions/1"


def test_a_version_that_failed_raises_its_findings() -> None:
    finding = {"pointer": "/env.py", "code": "package_invalid", "message": "no reward"}
    failed = EnvironmentVersion.model_validate(version(state="failed", findings=[finding]))
    with pytest.raises(EnvironmentInvalid, match="no reward") as caught:
        Script([]).client().environments.wait(failed)
    assert caught.value.ref == "calc@1"


def test_an_operation_gives_its_result_or_raises_its_code() -> None:
    pending = Operation.model_validate(operation())
    done = Script(answers(operation(state="done", result={"text": "2"})))
    assert done.client().operations.wait(pending, 5.0) == {"text": "2"}
    error = {"code": "context_overflow", "detail": "too long"}
    failed = Script(answers(operation(state="failed", error=error)))
    with pytest.raises(OperationFailed) as caught:
        failed.client().operations.wait(pending, 5.0)
    assert caught.value.code == "context_overflow"
    with pytest.raises(WaitTimeout):
        Script(answers(operation())).client().operations.wait(pending, 5.0)
