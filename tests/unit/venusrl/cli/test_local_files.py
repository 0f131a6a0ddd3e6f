"""What this machine refuses to a command is a message and an exit status, never a traceback."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.scripted_api import job_json, scripted_api
from venusrl._spec import SPEC_BYTES_MAX, read_spec
from venusrl.cli.app import app
from venusrl.client import SpecUnreadable

EXPORT = "GET /v1/jobs/job_1/rollouts/export"
SPEC = "name: calc\nmodel: {base: tiny-calc}\nenvironments: [{ref: calc}]\n"


def venus(
    monkeypatch: pytest.MonkeyPatch, routes: dict[str, Any], *arguments: str, stdin: str = ""
) -> tuple[Result, list[bytes]]:
    """A command, and the bodies that it sent."""
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")
    with scripted_api(routes) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        result = CliRunner().invoke(app, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result, [one.body for one in api.asked]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["rollouts", "export", "job_1", "{tmp}/none/x.jsonl"], 1, "No such file or directory"),
        (["rollouts", "export", "job_1", "{tmp}/file/x.jsonl"], 1, "Not a directory"),
        (["datasets", "push", "sums", "train={tmp}"], 1, "is no regular file"),
        (["datasets", "push", "sums", "train=/dev/zero"], 1, "is no regular file"),
        (["datasets", "push", "sums", "train={tmp}/none"], 1, "No such file or directory"),
        (["jobs", "submit", "/dev/zero"], 2, "neither a regular file nor a pipe"),
        (["jobs", "validate", "{tmp}/large"], 2, "exceeds"),
        (["jobs", "branch", "job_1", "--overrides", "/dev/zero"], 2, "neither a regular file"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_cannot_be_used_is_said(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    status: int,
    said: str,
    as_json: bool,
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "large").write_text(" " * (SPEC_BYTES_MAX + 1))
    asked = [one.replace("{tmp}", str(tmp_path)) for one in arguments]
    result, _ = venus(monkeypatch, {EXPORT: ["{}"]}, *asked, *(["--json"] if as_json else []))
    assert (result.exit_code, result.stdout) == (status, "")
    text = json.loads(result.stderr)["error"]["detail"] if as_json else result.stderr
    assert said in text
    assert as_json or result.stderr.startswith("venus: ")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failure_of_the_machine_in_any_command_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr("venusrl.env.local.machine.local_machine", full)
    options = ["--json"] if as_json else []
    result, _ = venus(monkeypatch, {}, "env", "test", str(tmp_path), *options)
    said = f"{tmp_path}: No space left on device"
    assert result.exit_code == 1
    assert (json.loads(result.stderr)["error"]["detail"] if as_json else result.stderr) == (
        said if as_json else f"venus: {said}\n"
    )


def test_a_spec_comes_from_standard_input_or_a_pipe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    routes = {"POST /v1/jobs": [job_json("validating")]}
    result, (sent,) = venus(monkeypatch, routes, "jobs", "submit", "-", "--json", stdin=SPEC)
    assert (result.exit_code, json.loads(sent)["name"]) == (0, "calc")
    large, bodies = venus(monkeypatch, routes, "jobs", "submit", "-", stdin=" " * (1 << 21))
    assert (large.exit_code, bodies) == (2, [])
    reading, writing = os.pipe()
    os.write(writing, SPEC.encode())
    os.close(writing)
    try:
        assert read_spec(Path(f"/dev/fd/{reading}"))["name"] == "calc"
    finally:
        os.close(reading)


def test_no_more_of_a_file_is_read_than_a_spec_may_have(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(SpecUnreadable, match="exceeds"):
            read_spec(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * SPEC_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hours", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_number_that_json_has_not_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, hours: str, as_json: bool
) -> None:
    options = ["--json"] if as_json else []
    result, bodies = venus(
        monkeypatch, {}, "jobs", "update", "job_1", "--max-wall-hours", hours, *options
    )
    assert (result.exit_code, bodies) == (2, [])
    assert "cannot be said in JSON" in result.stderr


@pytest.mark.parametrize(
    "labels", [["x"], ["=v"], [""], ["a=1", "x"], ["a=1", "a=2"]], ids=",".join
)
def test_a_label_is_a_name_and_a_value(monkeypatch: pytest.MonkeyPatch, labels: list[str]) -> None:
    options = [part for label in labels for part in ("--label", label)]
    result, bodies = venus(monkeypatch, {}, "jobs", "update", "job_1", *options)
    assert (result.exit_code, bodies) == (2, [])
    assert "NAME=VALUE" in result.stderr


def test_a_label_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"PATCH /v1/jobs/job_1": [job_json("queued")]}
    _, (sent,) = venus(monkeypatch, routes, "jobs", "update", "job_1", "--label", "a=")
    assert json.loads(sent) == {"labels": {"a": ""}}
