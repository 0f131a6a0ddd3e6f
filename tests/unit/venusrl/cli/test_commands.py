"""Commands against a scripted API: what they print and their exit status."""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.support.scripted_api import (
    Answer,
    Body,
    ScriptedApi,
    job_json,
    page,
    point,
    scripted_api,
)
from venusrl.cli.app import app

FAILED = job_json(
    "failed",
    failure={"code": "diverged", "component": "trainer", "retryable": False, "hint": "lower lr"},
)

EVENT = {
    "id": 7,
    "type": "step.committed",
    "body": {"step": 1},
    "created_at": "2026-11-29T12:00:30Z",
}

INVALID = {
    "status": 422,
    "code": "invalid",
    "detail": "The job spec has errors.",
    "errors": [
        {"pointer": "/model/base", "code": "unknown_model", "message": "There is no model 'tiny'.",
         "hint": "Near: tiny-calc.", "severity": "error"},
    ],
    "request_id": "req_9",
}  # fmt: skip


def venus(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")


def run(
    monkeypatch: pytest.MonkeyPatch,
    routes: Mapping[str, Sequence[Body | Answer]],
    *arguments: str,
) -> tuple[Result, ScriptedApi]:
    """A command against these answers."""
    with scripted_api(routes) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        return venus(*arguments), api


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """A spec file."""
    path = tmp_path / "job.yaml"
    path.write_text("name: calc\nmodel: {base: tiny-calc}\nenvironments: [{ref: calc}]\n")
    return path


def test_a_submitted_spec_is_sent_with_the_seed_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, spec: Path
) -> None:
    routes = {"POST /v1/jobs": [Answer(job_json("validating"), 201)]}
    result, api = run(monkeypatch, routes, "jobs", "submit", str(spec), "--seed", "5", "--json")
    assert (result.exit_code, json.loads(result.stdout)["state"]) == (0, "validating")
    assert json.loads(api.asked[0].body)["seed"] == 5
    assert api.asked[0].headers["idempotency-key"]


def test_a_refused_spec_ends_with_1_and_points_at_each_mistake(
    monkeypatch: pytest.MonkeyPatch, spec: Path
) -> None:
    routes = {"POST /v1/jobs": [Answer(INVALID, 422)]}
    result, _ = run(monkeypatch, routes, "jobs", "submit", str(spec))
    assert result.exit_code == 1
    assert "/model/base: There is no model 'tiny'. (Near: tiny-calc.)" in result.stderr


def test_a_refusal_as_json_keeps_code_findings_and_request_id(
    monkeypatch: pytest.MonkeyPatch, spec: Path
) -> None:
    routes = {"POST /v1/jobs": [Answer(INVALID, 422)]}
    result, _ = run(monkeypatch, routes, "jobs", "submit", str(spec), "--json")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["request_id"]) == ("invalid", "req_9")
    assert error["errors"][0]["pointer"] == "/model/base"


def test_a_file_that_is_no_spec_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: [unclosed\n")
    result, api = run(monkeypatch, {}, "jobs", "validate", str(path))
    assert (result.exit_code, api.asked) == (2, [])


def test_no_key_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VENUS_API_KEY")
    result = venus("jobs", "list")
    assert result.exit_code == 2
    assert "VENUS_API_KEY" in result.stderr


def test_an_api_that_is_not_there_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("VENUS_API_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
        result = venus("jobs", "list")
    assert result.exit_code == 3
    assert "cannot reach the API" in result.stderr


def test_validate_lists_findings_and_what_auto_became(
    monkeypatch: pytest.MonkeyPatch, spec: Path
) -> None:
    warning = {"pointer": "/rollout", "code": "w", "message": "small", "severity": "warning"}
    resolved = {"pointer": "/optimizer/lr", "value": 3e-4, "reason": "small model"}
    answer = {"valid": True, "findings": [warning], "spec": {}, "resolved": [resolved]}
    result, _ = run(
        monkeypatch, {"POST /v1/jobs/validate": [answer]}, "jobs", "validate", str(spec)
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "warning: /rollout: small",
        "auto: /optimizer/lr = 0.0003: small model",
        "valid",
    ]


def test_validate_ends_with_1_when_the_spec_is_not_valid(
    monkeypatch: pytest.MonkeyPatch, spec: Path
) -> None:
    answer = {"valid": False, "findings": INVALID["errors"], "spec": None, "resolved": []}
    routes = {"POST /v1/jobs/validate": [answer]}
    result, _ = run(monkeypatch, routes, "jobs", "validate", str(spec), "--json")
    assert (result.exit_code, json.loads(result.stdout)["valid"]) == (1, False)


def test_watching_a_job_that_succeeds_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: dict[str, Sequence[Body]] = {
        "GET /v1/jobs/job_1": [job_json()],
        "GET /v1/jobs/job_1/progress": [{"state": "succeeded", "step": 4, "max_steps": 4}],
        "GET /v1/jobs/job_1/evaluations": [page()],
        "GET /v1/jobs/job_1/metrics": [page(point(4, 0.8))],
    }
    result, _ = run(monkeypatch, routes, "jobs", "watch", "job_1")
    assert result.exit_code == 0
    assert "step 4/4  reward 0.800" in result.stdout
    assert result.stdout.splitlines()[-1] == "job_1 succeeded"


def test_watching_a_job_that_fails_ends_with_1_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes: dict[str, Sequence[Body]] = {
        "GET /v1/jobs/job_1": [FAILED],
        "GET /v1/jobs/job_1/progress": [{"state": "failed"}],
        "GET /v1/jobs/job_1/evaluations": [page()],
        "GET /v1/jobs/job_1/metrics": [page()],
    }
    result, _ = run(monkeypatch, routes, "jobs", "watch", "job_1")
    assert result.exit_code == 1
    assert "job_1 failed with diverged: lower lr" in result.stderr


def test_watching_as_json_streams_events_and_still_ends_with_1_on_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = (
        f"id: 7\nevent: step.committed\ndata: {json.dumps(EVENT)}\n\nevent: end\ndata: {{}}\n\n"
    )
    routes: dict[str, Sequence[Body]] = {
        "GET /v1/jobs/job_1/events": [stream],
        "GET /v1/jobs/job_1": [FAILED],
    }
    result, _ = run(monkeypatch, routes, "jobs", "watch", "job_1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["body"] == {"step": 1}
    assert "diverged" in json.loads(result.stderr)["error"]["detail"]


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "restart"])
def test_a_verb_shows_the_job_that_it_asked_of(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    routes = {f"POST /v1/jobs/job_1/{verb}": [Answer(job_json("running"), 202)]}
    result, _ = run(monkeypatch, routes, "jobs", verb, "job_1")
    assert result.exit_code == 0
    assert "state    running" in result.stdout


def test_a_verb_that_the_state_forbids_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = {"status": 409, "code": "job_ended", "detail": "The job has ended (succeeded)."}
    routes = {"POST /v1/jobs/job_1/pause": [Answer(refusal, 409)]}
    result, _ = run(monkeypatch, routes, "jobs", "pause", "job_1")
    assert result.exit_code == 1
    assert "409 job_ended" in result.stderr


def test_lists_are_tables_that_can_be_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"GET /v1/jobs": [page(job_json("queued", queue_reason="no free trainer"))]}
    result, _ = run(monkeypatch, routes, "jobs", "list")
    head, row = result.stdout.splitlines()
    assert head.split() == ["JOB", "NAME", "STATE", "ATTEMPT", "CREATED", "WAITS", "FOR"]
    assert row.split()[:4] == ["job_1", "calc", "queued", "1"]


def test_the_ledger_ends_with_the_number_of_all_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"purpose": "train", "end": "done", "verdict": "scored", "disposition": "trained(1)",
            "rollouts": 64}  # fmt: skip
    routes = {"GET /v1/jobs/job_1/ledger": [{"rollouts": 64, "lines": [line]}]}
    result, _ = run(monkeypatch, routes, "jobs", "ledger", "job_1")
    assert result.stdout.splitlines()[-1].split() == ["all", "64"]


def test_metrics_and_events_are_printed_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {
        "GET /v1/jobs/job_1/metrics": [page(point(1, 0.25))],
        "GET /v1/jobs/job_1/events": [page(EVENT)],
    }
    metrics, _ = run(monkeypatch, routes, "jobs", "metrics", "job_1", "--names", "reward_mean")
    events, _ = run(monkeypatch, routes, "jobs", "events", "job_1")
    assert metrics.stdout.splitlines()[1].split() == ["att_1", "1", "reward_mean", "0.25"]
    assert events.stdout.split() == ["7", "12:00:30", "step.committed", "step=1"]


def test_checkpoints_and_generate_print_what_a_person_looks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = {
        "id": "ckpt_1", "job_id": "job_1", "attempt_id": "att_1", "step": 4, "state": "ready",
        "reason": "end", "weights_sha": "ab" * 32, "created_at": "2026-11-29T12:00:00Z",
        "score": 0.25,
        "files": [{"name": "model.safetensors", "size": 10, "sha256": "cd" * 32}],
    }  # fmt: skip
    operation = {"id": "op_1", "kind": "generate", "created_at": "2026-11-29T12:00:00Z"}
    result = {"text": "a49;", "content": "49", "finish": "stop", "tool_calls": [],
              "prompt_tokens": 10, "sampled_tokens": 4, "weights_sha": "ab"}  # fmt: skip
    routes: dict[str, Sequence[Body | Answer]] = {
        "GET /v1/jobs/job_1/checkpoints": [page(checkpoint)],
        "POST /v1/checkpoints/ckpt_1/generate": [Answer({**operation, "state": "pending"}, 202)],
        "GET /v1/operations/op_1": [{**operation, "state": "done", "result": result}],
    }
    listed, _ = run(monkeypatch, routes, "checkpoints", "list", "job_1")
    asked, _ = run(monkeypatch, routes, "checkpoints", "generate", "ckpt_1", "12+07+30")
    assert listed.stdout.splitlines()[1].split() == [
        "ckpt_1", "job_1", "4", "ready", "end", "-", "10", "ab" * 8, "0.250",
    ]  # fmt: skip
    assert asked.stdout == "a49;\n"


def test_versions_say_what_is_wrong_with_those_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = {
        "id": "ev_1", "environment": "calc", "version": 1, "ref": "calc@1", "state": "failed",
        "content_sha": "sha256:00", "created_at": "2026-11-29T12:00:00Z", "splits": {"train": 2},
        "findings": [{"pointer": "/env.py", "code": "raised", "message": "No module named x"}],
    }  # fmt: skip
    routes = {"GET /v1/environments/calc/versions": [page(version)]}
    result, _ = run(monkeypatch, routes, "env", "versions", "calc")
    assert "/env.py No module named x" in result.stdout


def test_server_commands_outside_a_tree_say_where_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "supervisor.up", None)
    result = venus("up")
    assert result.exit_code == 2
    assert "source tree" in result.stderr
