"""`venus webhooks`, `venus audit` and `venus usage` against a gateway that listens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.integration.api.world import Tenant, World, installation
from tests.support.requirements import requires
from venusrl.cli.app import app

pytestmark = [pytest.mark.integration, requires("postgres")]

URL = "https://example.com/hook"


@pytest.fixture
def world(database_url: str, tmp_path: Path) -> Iterator[World]:
    """A gateway on a fresh database."""
    with installation(database_url, tmp_path / "home") as made:
        yield made


@pytest.fixture
def tenant(world: World, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """A project whose key, an admin's, the command line uses."""
    made = world.tenant(role="admin")
    monkeypatch.setenv("VENUS_API_URL", world.address)
    monkeypatch.setenv("VENUS_API_KEY", made.key)
    return made


def venus(*arguments: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments)


def test_a_webhook_is_made_shown_changed_tested_and_deleted(tenant: Tenant) -> None:
    made = json.loads(venus("webhooks", "create", URL, "--type", "job.*", "--json").stdout)
    id = made["id"]
    assert made["secret"].startswith("whsec_")
    assert made["types"] == ["job.*"]
    assert made["secret"] not in venus("webhooks", "list").stdout
    delivery = json.loads(venus("webhooks", "test", id, "--json").stdout)
    shown = venus("webhooks", "deliveries", id, "--state", "pending").stdout
    assert delivery["id"] in shown
    assert delivery["id"] in venus("webhooks", "redeliver", id, delivery["id"]).stdout
    assert "off" in venus("webhooks", "update", id, "--off").stdout
    refused = venus("webhooks", "test", id)
    assert refused.exit_code == 1
    assert "switched off" in refused.stderr
    assert json.loads(venus("webhooks", "get", id, "--json").stdout)["active"] is False
    assert venus("webhooks", "rotate", id).stdout.splitlines()[1].startswith("whsec_")
    assert venus("webhooks", "delete", id).exit_code == 0
    assert json.loads(venus("webhooks", "list", "--json").stdout) == []


def test_an_address_that_is_never_called_is_refused_with_1(tenant: Tenant) -> None:
    refused = venus("webhooks", "create", "https://127.0.0.1", "--json")
    assert refused.exit_code == 1
    (finding,) = json.loads(refused.stderr)["error"]["errors"]
    assert (finding["pointer"], finding["code"]) == ("/url", "address_refused")


def test_audit_shows_what_was_done_newest_first(tenant: Tenant) -> None:
    job = tenant.job()
    venus("jobs", "pause", job["id"])
    shown = json.loads(venus("audit", "--target", job["id"], "--json").stdout)
    assert [one["action"] for one in shown] == ["jobs.pause", "jobs.create"]
    table = venus("audit", "--action", "jobs.pause").stdout.splitlines()
    assert len(table) == 2
    assert job["id"] in table[1]
    assert json.loads(venus("audit", "--since", "2999-01-01", "--json").stdout) == []


def test_usage_of_a_project_that_held_nothing_is_empty(tenant: Tenant) -> None:
    assert json.loads(venus("usage", "--json").stdout) == []
    assert venus("usage", "--group-by", "resource", "--bucket", "hour").exit_code == 0
    refused = venus("usage", "--since", "2020-01-01", "--json")
    assert refused.exit_code == 1
