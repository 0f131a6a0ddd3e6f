"""`venus secrets`: a value comes from standard input, and is printed nowhere."""

import json
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from tests.support.scripted_api import Answer, Body, page, scripted_api
from venusrl.cli.app import app

CREATED = "2026-11-29T12:00:00Z"

SECRET = {"id": "sec_1", "name": "judge-key", "created_at": CREATED, "updated_at": CREATED}

VALUE = "canary-of-the-command-line"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("typed", [VALUE, VALUE + "\n", VALUE + "\r\n"])
def test_a_value_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, options: list[str], typed: str
) -> None:
    with scripted_api({"PUT /v1/secrets/judge-key": [SECRET]}) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        arguments = ["secrets", "set", "judge-key", *options]
        done = CliRunner().invoke(app, arguments, input=typed)
    assert done.exit_code == 0
    assert json.loads(api.asked[0].body) == {"value": VALUE}
    assert VALUE not in done.output
    assert "judge-key" in done.stdout


def test_lines_inside_a_value_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_api({"PUT /v1/secrets/judge-key": [SECRET]}) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        CliRunner().invoke(app, ["secrets", "set", "judge-key"], input="one\ntwo\n\n")
    assert json.loads(api.asked[0].body) == {"value": "one\ntwo\n"}


def test_names_are_listed_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: dict[str, Sequence[Body | Answer]] = {
        "GET /v1/secrets": [page(SECRET)],
        "DELETE /v1/secrets/judge-key": [Answer("", 204)],
    }
    with scripted_api(routes) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        listed = CliRunner().invoke(app, ["secrets", "list"])
        deleted = CliRunner().invoke(app, ["secrets", "delete", "judge-key", "--json"])
    assert "judge-key" in listed.stdout
    assert json.loads(deleted.stdout) == {"name": "judge-key", "state": "deleted"}


def test_a_refusal_has_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Answer({"status": 409, "code": "in_use", "detail": "job_1 names it"}, 409)
    with scripted_api({"DELETE /v1/secrets/judge-key": [refused]}) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        done = CliRunner().invoke(app, ["secrets", "delete", "judge-key"])
    assert done.exit_code == 1
    assert "job_1 names it" in done.stderr
