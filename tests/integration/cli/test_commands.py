"""`venus` against a gateway that listens on a real database."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from supervisor.demo import SPEC
from tests.integration.api.world import Tenant, World, installation
from tests.support.requirements import requires
from venusrl.cli.app import app

pytestmark = [pytest.mark.integration, requires("postgres")]


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway on a fresh database."""
    with installation(database_url, tmp_path / "home") as made:
        yield made


@pytest.fixture
def tenant(world: World, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """A project whose key the command line uses."""
    made = world.tenant()
    monkeypatch.setenv("VENUS_API_URL", world.address)
    monkeypatch.setenv("VENUS_API_KEY", made.key)
    return made


def venus(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments)


def test_an_unknown_environment_is_refused_with_1_and_nothing_is_made(tenant: Tenant) -> None:
    refused = venus("jobs", "submit", str(SPEC))
    assert refused.exit_code == 1
    assert "/environments/0/ref" in refused.stderr
    assert json.loads(venus("jobs", "list", "--json").stdout) == []


def test_validate_points_at_every_mistake_of_a_spec(tenant: Tenant, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("name: x\nmodel: {base: tiny-clac}\nenvironments: [{ref: calc}]\n")
    answer = json.loads(venus("jobs", "validate", str(path), "--json").stdout)
    pointers = {one["pointer"]: one["hint"] for one in answer["findings"]}
    assert set(pointers) == {"/model/base", "/environments/0/ref"}
    assert "tiny-calc" in pointers["/model/base"]


def test_a_folder_that_is_no_package_is_refused_before_it_is_sent(
    tenant: Tenant, tmp_path: Path
) -> None:
    refused = venus("env", "push", str(tmp_path))
    assert refused.exit_code == 1
    assert "venus.toml" in refused.stderr
    assert json.loads(venus("env", "list", "--json").stdout) == []


def test_a_wrong_key_is_refused_with_1(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_nobody")
    refused = venus("jobs", "list")
    assert refused.exit_code == 1
    assert "401" in refused.stderr


def test_another_tenants_job_is_not_found(tenant: Tenant) -> None:
    other = tenant.world.tenant("another").job()
    refused = venus("jobs", "get", other["id"], "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["code"] == "not_found"


def test_a_job_is_submitted_read_and_cancelled(tenant: Tenant) -> None:
    tenant.environment()
    job = json.loads(venus("jobs", "submit", str(SPEC), "--seed", "9", "--json").stdout)
    assert (job["name"], job["spec"]["seed"]) == ("calc-grpo", 9)
    assert job["id"] in venus("jobs", "list").stdout
    assert json.loads(venus("jobs", "cancel", job["id"], "--json").stdout)["desired"] == "cancel"
    assert "job.created" in venus("jobs", "events", job["id"]).stdout


def test_watching_a_failed_job_ends_with_1_and_its_cause(tenant: Tenant) -> None:
    job = tenant.ended("failed")
    watched = venus("jobs", "watch", job["id"])
    assert watched.exit_code == 1
    assert "trainer_failed: nan" in watched.stderr


def test_a_job_is_changed_and_branched(tenant: Tenant, tmp_path: Path) -> None:
    job = tenant.job()
    changed = venus(
        "jobs", "update", job["id"], "--max-steps", "7", "--priority", "high",
        "--max-wall-hours", "2", "--label", "team=a", "--json",
    )  # fmt: skip
    spec = json.loads(changed.stdout)["spec"]
    assert (spec["stop"]["max_steps"], spec["resources"]["priority"]) == (7, "high")
    assert (spec["budget"]["max_wall_hours"], spec["labels"]) == (2.0, {"team": "a"})
    late = venus("jobs", "update", job["id"], "--name", "x", "--if-match", '"old"', "--json")
    assert (late.exit_code, json.loads(late.stderr)["error"]["code"]) == (1, "precondition_failed")
    checkpoint = tenant.checkpoint(job)
    (tmp_path / "other.yaml").write_text("optimizer: {lr: 1e-5}\nstop: {max_steps: 9}\n")
    made = json.loads(
        venus(
            "jobs", "branch", job["id"], "--checkpoint", checkpoint, "--name", "b",
            "--overrides", str(tmp_path / "other.yaml"), "--set", "stop.max_steps=12", "--json",
        ).stdout
    )  # fmt: skip
    assert (made["name"], made["spec"]["stop"]["max_steps"]) == ("b", 12)
    assert made["spec"]["optimizer"]["lr"] == 1e-5
    assert made["id"] != job["id"]


def test_the_schema_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VENUS_API_KEY", raising=False)
    assert "rollout" in json.loads(venus("jobs", "schema").stdout)["properties"]
