"""`venus env` against a real gateway: what becomes of uploaded versions."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from infra.names import TEST_ENVIRONMENT, VALIDATE_ENVIRONMENT
from stores import tables as t
from tests.integration.api.world import CALC, Tenant, World, installation
from tests.support.requirements import requires
from venusrl.cli.app import app

pytestmark = [pytest.mark.integration, requires("postgres", "bwrap")]


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
    return CliRunner().invoke(app, ["env", *arguments])


def said(*arguments: str, status: int = 0) -> Any:
    """The document that a command printed."""
    done = venus(*arguments, "--json")
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


@contextmanager
def chores(world: World, *kinds: str) -> Iterator[None]:
    """Does what comes up meanwhile, each in a process of its own as a worker does."""
    over = threading.Event()
    environ = {
        **os.environ,
        "DATABASE_URL": world.settings.database_url,
        "OBJECT_STORE_URL": world.settings.object_store_url,
        "VENUS_HOME": str(world.settings.home),
    }

    def work() -> None:
        while not over.wait(0.05):
            for row in world.rows(t.operation):
                if row.state == "pending" and row.kind in kinds:
                    command = [sys.executable, "-m", "workers.chores.main", row.id]
                    subprocess.run(command, env=environ, check=True, capture_output=True)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def test_a_version_goes_from_draft_to_deletion(world: World, tenant: Tenant) -> None:
    with chores(world, VALIDATE_ENVIRONMENT, TEST_ENVIRONMENT):
        pushed = said("push", str(CALC), "--draft")
        assert (pushed["ref"], pushed["state"], pushed["draft"]) == ("calc@1", "ready", True)
        report = said("test-run", "calc@1", "--tasks", "2")
        assert (report["passed"], report["played"]) == (True, 2)
        shown = venus("test-run", "calc@1", "--split", "train")
        assert "train played" in shown.stdout
        assert said("validate", "calc@1")["state"] == "ready"
    assert said("publish", "calc@1")["draft"] is False
    yanked = said("yank", "calc@1", "--reason", "too easy")
    assert (yanked["state"], yanked["yank_reason"]) == ("yanked", "too easy")
    text = venus("show", "calc").stdout
    assert "yanked" in text
    assert "too easy" in text
    assert pushed["content_sha"] in text
    assert said("show", "calc@1")["content_sha"] == pushed["content_sha"]
    assert said("delete", "calc") == {"name": "calc", "state": "deleted"}
    assert venus("show", "calc").exit_code == 1


def test_what_is_no_version_is_a_usage_error(tenant: Tenant) -> None:
    for command in ("yank", "publish", "validate", "test-run"):
        done = venus(command, "calc")
        assert (done.exit_code, "NAME@N" in done.stderr) == (2, True), command
