"""One spec, one judgement: API, command line and client library find the same, creation included."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from typer.testing import CliRunner

from stores import tables as t
from tests.integration.api.world import Tenant, World, installation
from tests.property.test_job_specs import AROUND, assert_planned, job_row
from tests.support.requirements import requires
from tests.support.spec_strategies import DOCUMENTS_OF_ALL_KINDS, SPECS, mended
from venusrl.cli.app import app
from venusrl.client import Client, Invalid

pytestmark = [pytest.mark.integration, requires("postgres"), pytest.mark.timeout(300)]

some = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway on a fresh database, for all examples of a test."""
    with installation(database_url, tmp_path / "home") as made:
        yield made


@pytest.fixture
def ready(world: World, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """A project with the environment calc, whose key the command line uses."""
    made = world.tenant()
    made.environment()
    monkeypatch.setenv("VENUS_API_URL", world.address)
    monkeypatch.setenv("VENUS_API_KEY", made.key)
    return made


@pytest.fixture
def client(ready: Tenant) -> Iterator[Client]:
    """The client library."""
    with ready.sdk() as made:
        yield made


def venus(*arguments: str) -> tuple[int, Any, Any]:
    """Exit status, and what a command printed as JSON on each stream."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    printed, said = (json.loads(text or "null") for text in (result.stdout, result.stderr))
    return result.exit_code, printed, said


def refused(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Findings of a creation that must fail."""
    with pytest.raises(Invalid) as error:
        client.jobs.create(body)
    return [one.model_dump(mode="json") for one in error.value.errors]


def test_whatever_is_sent_is_judged_alike_everywhere_and_only_valid_jobs_are_made(
    world: World, ready: Tenant, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"

    @some
    @given(DOCUMENTS_OF_ALL_KINDS)
    def judge(body: dict[str, Any]) -> None:
        path.write_text(json.dumps(body))
        before = len(world.rows(t.job))
        with ready.http() as http:
            looked = http.post("/v1/jobs/validate", json=body).json()
            made = http.post("/v1/jobs", json=body)
        findings, is_valid = looked["findings"], looked["valid"]
        event("valid" if is_valid else "refused")
        assert client.jobs.validate(body).model_dump(mode="json") == looked
        status, printed, _ = venus("jobs", "validate", str(path))
        assert (status, printed) == (0 if is_valid else 1, looked)
        if is_valid:
            assert (made.status_code, made.json()["findings"]) == (201, findings)
            return
        assert (made.status_code, made.json()["errors"]) == (422, findings)
        assert refused(client, body) == findings
        status, _, said = venus("jobs", "submit", str(path))
        assert (status, said["error"]["errors"]) == (1, findings)
        assert len(world.rows(t.job)) == before

    judge()
    made = {row.id for row in world.rows(t.job)}
    assert {row.job_id for row in world.rows(t.attempt)} == made
    assert {row.request["job_id"] for row in world.rows(t.operation)} == made


def test_every_valid_spec_is_accepted_by_all_three_and_planned_as_stored(
    world: World, ready: Tenant, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"

    @some
    @given(SPECS)
    def submit(drawn: dict[str, Any]) -> None:
        body = mended(drawn, AROUND)
        path.write_text(json.dumps(body))
        by_library = client.jobs.create(body)
        _, by_command, _ = venus("jobs", "submit", str(path))
        with ready.http() as http:
            by_hand = http.post("/v1/jobs", json=body).json()
        assert by_library.spec == by_command["spec"] == by_hand["spec"]
        stored = next(row for row in world.rows(t.job) if row.id == by_library.id)
        assert stored.submitted_spec == body
        assert_planned(job_row(stored.spec), world.settings)

    submit()


def test_yaml_and_json_of_one_document_are_the_same_spec(ready: Tenant, tmp_path: Path) -> None:
    spec = {
        "name": "\U0001f600 ü",
        "model": {"base": "tiny-calc"},
        "environments": [{"ref": "calc"}],
    }
    (tmp_path / "job.json").write_text(json.dumps(spec, ensure_ascii=True))
    (tmp_path / "job.yaml").write_text(
        "name: '\U0001f600 ü'\nmodel: {base: tiny-calc}\nenvironments: [{ref: calc}]\n"
    )
    answers = [venus("jobs", "validate", str(tmp_path / name)) for name in ("job.json", "job.yaml")]
    assert answers[0] == answers[1]
    assert answers[0][0] == 0
