"""`venus keys`, `models`, `datasets`, `checkpoints get`, completion: what they print and their status."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.support.scripted_api import Answer, Body, ScriptedApi, page, scripted_api
from venusrl.cli.app import app

CREATED = "2026-11-29T12:00:00Z"

KEY = {
    "id": "key_1", "organization_id": "org_1", "project_id": "prj_1", "name": "ci",
    "role": "developer", "prefix": "vrl_abc", "created_at": CREATED,
}  # fmt: skip

MODEL = {
    "name": "mine", "ref": "upload:mdl_1", "id": "mdl_1", "state": "ready",
    "source": {"type": "upload"}, "context_tokens": 96, "parameters": 1000, "created_at": CREATED,
}  # fmt: skip

FINDING = {"pointer": "/train/2", "code": "malformed_line", "message": "Line 2: no JSON."}

VERSION = {
    "id": "dv_1", "dataset": "sums", "version": 1, "ref": "sums@1", "content_sha": "s" * 64,
    "state": "ready", "splits": {"train": {"size": 9, "sha256": "0", "rows": 3}},
    "created_at": CREATED,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")


def run(
    monkeypatch: pytest.MonkeyPatch, routes: Mapping[str, Sequence[Body | Answer]], *arguments: str
) -> tuple[Result, ScriptedApi]:
    """A command against these answers."""
    with scripted_api(routes) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        return CliRunner().invoke(app, arguments), api


def test_a_rotated_key_shows_its_secret_once(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {
        "POST /v1/api-keys/key_1/rotate": [Answer({**KEY, "id": "key_2", "secret": "vrl_s"}, 201)]
    }
    result, api = run(monkeypatch, routes, "keys", "rotate", "key_1", "--grace", "60")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "vrl_s")
    assert json.loads(api.asked[0].body) == {"grace_s": 60}


def test_keys_are_made_listed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: dict[str, list[Any]] = {
        "POST /v1/api-keys": [Answer({**KEY, "secret": "vrl_s"}, 201)],
        "GET /v1/api-keys": [page(KEY)],
        "DELETE /v1/api-keys/key_1": [{}],
    }
    made, api = run(
        monkeypatch, routes, "keys", "create", "ci", "--project", "prj_1", "--expires",
        "2027-01-01", "--json",
    )  # fmt: skip
    assert json.loads(made.stdout)["secret"] == "vrl_s"
    assert json.loads(api.asked[0].body)["expires_at"] == "2027-01-01T00:00:00+00:00"
    listed, _ = run(monkeypatch, routes, "keys", "list")
    assert "vrl_abc" in listed.stdout
    deleted, _ = run(monkeypatch, routes, "keys", "delete", "key_1", "--json")
    assert json.loads(deleted.stdout) == {"id": "key_1", "state": "revoked"}


def test_a_model_is_added_from_each_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.json", "chat.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    routes = {"POST /v1/models": [Answer(MODEL, 201)]}
    add = ("models", "add", "mine")
    _, api = run(monkeypatch, routes, *add, "--folder", str(tmp_path))
    assert api.asked[0].headers["content-type"].startswith("multipart/form-data")
    assert b'name="model.safetensors"' in api.asked[0].body
    _, api = run(monkeypatch, routes, *add, "--checkpoint", "ckpt_1")
    assert json.loads(api.asked[0].body)["source"] == {"type": "checkpoint", "checkpoint": "ckpt_1"}
    result, api = run(monkeypatch, routes, *add, "--hub", "acme/tiny@v1")
    source = {"type": "hub", "repo": "acme/tiny", "revision": "v1"}
    assert json.loads(api.asked[0].body)["source"] == source
    assert "upload:mdl_1" in result.stdout


@pytest.mark.parametrize("options", [(), ("--checkpoint", "ckpt_1", "--hub", "a/b")])
def test_a_model_has_one_source(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    result, api = run(monkeypatch, {}, "models", "add", "mine", *options)
    assert (result.exit_code, api.asked) == (2, [])


def test_a_model_that_failed_ends_with_1_and_its_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = {"pointer": "/config.json", "code": "malformed", "message": "The file is no JSON."}
    routes = {"POST /v1/models": [{**MODEL, "state": "failed", "findings": [finding]}]}
    result, _ = run(monkeypatch, routes, "models", "add", "mine", "--checkpoint", "ckpt_1")
    assert result.exit_code == 1
    assert "/config.json: The file is no JSON." in result.stderr


def test_datasets_are_pushed_by_split_and_findings_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1"}\n')
    routes = {
        "POST /v1/datasets/sums/versions": [
            {**VERSION, "findings": [{**FINDING, "severity": "warning"}], "unlisted": {"x": 2}}
        ]
    }
    result, api = run(monkeypatch, routes, "datasets", "push", "sums", f"train={tmp_path}/a.jsonl")
    assert result.exit_code == 0
    assert b'name="train"' in api.asked[0].body
    assert "sums@1 is ready (3 train)" in result.stdout
    assert "warning: /train/2: Line 2: no JSON." in result.stdout
    assert "and 2 more: x" in result.stdout


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for argument in (f"train={tmp_path}/no.jsonl", str(tmp_path)):
        result, api = run(monkeypatch, {}, "datasets", "push", "sums", argument)
        assert (result.exit_code, api.asked) == (1, [])
        assert "jsonl" in result.stderr


def test_a_version_is_named_by_name_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"GET /v1/datasets/sums/versions/1": [VERSION]}
    result, _ = run(monkeypatch, routes, "datasets", "get", "sums@1", "--json")
    assert json.loads(result.stdout)["ref"] == "sums@1"
    for words in (("get", "sums@x"), ("preview", "sums"), ("push", "sums", "train=")):
        result, _ = run(monkeypatch, {}, "datasets", *words)
        assert result.exit_code == 2, words


def test_every_command_takes_json() -> None:
    from typer.main import get_command

    groups = get_command(app).commands  # type: ignore[attr-defined]
    without = [
        f"{group} {name}"
        for group, inner in groups.items()
        for name, command in getattr(inner, "commands", {group: inner}).items()
        if "--json" not in {option for one in command.params for option in one.opts}
    ]
    assert without == ["jobs schema"], "it is JSON anyhow"


def test_the_shell_is_told_how_to_complete() -> None:
    main = "import sys; sys.argv[0] = 'venus'; from venusrl.cli import main; main()"
    asked = {"_VENUS_COMPLETE": "complete_bash", "COMP_WORDS": "venus da", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", main], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["datasets"]
