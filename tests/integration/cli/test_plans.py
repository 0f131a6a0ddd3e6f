"""`venus plan` and `venus jobs whatif` against a gateway on a real database, chores done beside it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stores import tables as t
from tests.integration.api.ran import ran
from tests.integration.api.test_plans import PROFILE, SMALL
from tests.integration.api.world import Tenant, World
from tests.integration.cli.test_commands import tenant as tenant
from tests.integration.cli.test_commands import venus
from tests.integration.cli.test_commands import world as world
from tests.support.requirements import requires
from tests.support.stack import TREE

pytestmark = [pytest.mark.integration, requires("postgres")]


@contextmanager
def chores(world: World) -> Iterator[None]:
    """Does each plan that is asked for meanwhile."""
    over = threading.Event()
    places = {"DATABASE_URL": world.settings.database_url, "VENUS_HOME": str(world.settings.home)}

    def work() -> None:
        # Processes of their own: what they log is no output of the command.
        while not over.wait(0.05):
            for row in world.rows(t.operation):
                if row.state == "pending" and row.kind == "plan":
                    subprocess.run(
                        (sys.executable, "-m", "workers.chores.main", row.id),
                        env={**os.environ, **places},
                        cwd=TREE,
                        check=True,
                        capture_output=True,
                    )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_plan_is_a_table_with_its_assumptions(tenant: Tenant, tmp_path: Path) -> None:
    tenant.environment()
    spec, profile = tmp_path / "job.json", tmp_path / "profile.json"
    spec.write_text(json.dumps(SMALL))
    profile.write_text(json.dumps(PROFILE))
    with chores(tenant.world):
        asked = ("plan", str(spec), "--profile", str(profile), "--workers", "2", "--replicas", "4")
        shown = venus(*asked)
        as_json = venus(*asked, "--json")
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["FORECAST", "10", "%", "90", "%"]
    assert any(line.startswith("seconds a step") for line in lines)
    assert "profile: rollouts: as the request declares them" in lines
    assert json.loads(as_json.stdout)["forecast"]["engines"] == 2


def test_a_plan_of_what_nothing_is_known_of_begins_with_the_warning(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.environment()
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(SMALL))
    with chores(tenant.world):
        shown = venus("plan", str(spec), "--replicas", "4", "--steps", "1")
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("warning: nothing is known of calc: limits of the spec only")
    assert lines[1].split() == ["GUESS", "LOW", "HIGH"]


def test_a_what_if_prints_its_own_error_before_anything_else(tenant: Tenant) -> None:
    job = ran(tenant)["id"]
    with chores(tenant.world):
        shown = venus(
            "jobs", "whatif", job, "--workers", "2", "--max-staleness", "1", "--async-ratio",
            "1.5", "--strategy", "venus", "--replicas", "4",
        )  # fmt: skip
    assert shown.exit_code == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "unchanged settings beside what happened, 3 steps"
    assert lines[1].split()[:3] == ["RECORDED", "FORECAST", "10"]
    recorded = next(line for line in lines if line.startswith("seconds a step"))
    assert recorded.split()[3] == "9"
    changed = next(n for n, line in enumerate(lines) if line.startswith("changed settings"))
    assert changed > 2
    assert any(line.startswith("2 engines") for line in lines)


def test_a_what_if_says_what_it_cannot_change(tenant: Tenant) -> None:
    job = ran(tenant, 1)["id"]
    refused = venus("jobs", "whatif", job, "--set", "optimizer.lr=0.1", "--json")
    assert refused.exit_code == 1
    (finding,) = json.loads(refused.stderr)["error"]["errors"]
    assert finding["code"] == "not_modelled"
