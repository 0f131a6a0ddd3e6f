"""`venus rollouts` against a gateway that listens on a real database."""

import json
from pathlib import Path

import pytest

from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant
from tests.integration.cli.test_commands import tenant as tenant
from tests.integration.cli.test_commands import venus
from tests.integration.cli.test_commands import world as world
from tests.support.requirements import requires

pytestmark = [pytest.mark.integration, requires("postgres")]


@pytest.fixture
def filled(tenant: Tenant) -> Filled:
    """A job with rollouts."""
    return Filled(tenant)


def test_rollouts_are_listed_by_filter(filled: Filled) -> None:
    job = filled.job["id"]
    found = json.loads(venus("rollouts", "list", job, "--bucket", "trained", "--json").stdout)
    assert [one["id"] for one in found] == filled.rollouts[:2]
    table = venus("rollouts", "list", job, "--disposition", "dropped").stdout
    assert filled.rollouts[2] in table
    newest = json.loads(venus("rollouts", "list", job, "--newest-first", "--json").stdout)
    assert [one["id"] for one in newest] == filled.rollouts[::-1]


def test_one_rollout_says_why_it_was_dropped(filled: Filled) -> None:
    text = venus("rollouts", "show", filled.rollouts[2]).stdout
    assert text.startswith("Not trained: ")
    assert "bad_type" in text
    shown = json.loads(venus("rollouts", "show", filled.rollouts[0], "--json").stdout)
    assert shown["training"]["step"] == 1


def test_a_rollout_names_its_environment(filled: Filled) -> None:
    filled.world.change(t.rollout_group, filled.test, environment=2)
    job, last = filled.job["id"], filled.rollouts[3]
    found = json.loads(venus("rollouts", "list", job, "--json").stdout)
    assert [one["environment"] for one in found] == [0, 0, 0, 2]
    ranged = json.loads(venus("rollouts", "list", job, "--reward-max", "0.6", "--json").stdout)
    assert [one["environment"] for one in ranged] == [0, 2]
    assert "ENVIRONMENT" in venus("rollouts", "list", job).stdout.splitlines()[0]
    assert json.loads(venus("rollouts", "show", last, "--json").stdout)["environment"] == 2
    lines = [line.split() for line in venus("rollouts", "show", last).stdout.splitlines()]
    assert ["environment", "2"] in lines


def test_an_unknown_filter_value_is_refused_with_1(filled: Filled) -> None:
    refused = venus("rollouts", "list", filled.job["id"], "--end", "nonsense", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["errors"]


def test_trajectories_are_exported_to_a_file(filled: Filled, tmp_path: Path) -> None:
    stored(filled.world, filled.rollouts[0])
    file = tmp_path / "out.jsonl"
    done = json.loads(venus("rollouts", "export", filled.job["id"], str(file), "--json").stdout)
    assert done["bytes"] == file.stat().st_size
    assert len(file.read_text().splitlines()) == 4
