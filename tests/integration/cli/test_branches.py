"""`venus rollouts branch` against a gateway; what a chore would answer is written beside it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func

from infra.names import BRANCH_ROLLOUT
from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.test_branches import RESULT
from tests.integration.api.world import Tenant, World
from tests.integration.cli.test_commands import tenant as tenant
from tests.integration.cli.test_commands import venus
from tests.integration.cli.test_commands import world as world
from tests.support.requirements import requires
from venusrl.env.host.cases import read_cases

pytestmark = [pytest.mark.integration, requires("postgres")]


@pytest.fixture
def rollout(tenant: Tenant) -> str:
    """A closed rollout of four turns whose job has a checkpoint."""
    filled = Filled(tenant)
    name = filled.rollouts[0]
    stored(tenant.world, name)
    tenant.world.change(t.rollout, name, turns=4, closed_at=func.now())
    tenant.checkpoint(filled.job)
    return name


@contextmanager
def answered(world: World, **values: Any) -> Iterator[list[dict[str, Any]]]:
    """End each branch with these values as soon as it is asked for; what was asked."""
    over, asked = threading.Event(), list[dict[str, Any]]()

    def work() -> None:
        while not over.wait(0.05):
            for row in world.rows(t.operation):
                if row.state == "pending" and row.kind == BRANCH_ROLLOUT:
                    asked.append(row.request)
                    world.change(t.operation, row.id, **values)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield asked
    finally:
        over.set()
        worker.join()


def with_case(**case: Any) -> dict[str, Any]:
    """The result with this case of its one continuation."""
    border = RESULT["borders"][0]
    one = border["continuations"][0] | {"case": case or None}
    return {**RESULT, "borders": [{**border, "continuations": [one]}]}


def test_a_branch_shows_borders_and_continuations(world: World, rollout: str) -> None:
    with answered(world, state="done", result=RESULT) as asked:
        text = venus("rollouts", "branch", rollout, "--turn", "2", "-n", "1").stdout
        found = json.loads(venus("rollouts", "branch", rollout, "--curve", "--json").stdout)
    assert "files only" in text
    assert "2/0" in text
    assert "1/1" in text
    assert [one["turns"] for one in asked] == [[2], [0, 1, 2, 3]]
    assert found["borders"][0]["pass_rate"] == 1.0
    listed = venus("rollouts", "branches", rollout).stdout
    assert listed.count("done") == 2


def test_set_takes_a_text_or_a_file(world: World, rollout: str, tmp_path: Path) -> None:
    (tmp_path / "said").write_text("all 3 passed\n")
    with answered(world, state="done", result=RESULT) as asked:
        for value in ("7", f"@{tmp_path / 'said'}"):
            done = venus(
                "rollouts", "branch", rollout, "--turn", "2", "--set", f"tool_output={value}"
            )
            assert done.exit_code == 0, done.output
    assert [one["tool_output"] for one in asked] == ["7", "all 3 passed\n"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--turn", "1", "--curve"),
        ("--turn", "1", "--set", "answer=1"),
        ("--turn", "1", "--set", "x"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(rollout: str, arguments: tuple[str, ...]) -> None:
    assert venus("rollouts", "branch", rollout, *arguments).exit_code == 2


def test_the_best_continuation_is_appended_as_a_case(
    world: World, rollout: str, tmp_path: Path
) -> None:
    file = tmp_path / "cases" / "all.jsonl"
    case = {"name": "n", "split": "train", "task": "t", "turns": [{"content": "1", "replies": []}],
            "expect": {"end": "done", "total": 1.0}}  # fmt: skip
    save = ("rollouts", "branch", rollout, "--turn", "2", "--save-case", str(file))
    with answered(world, state="done", result=with_case(**case)):
        assert venus(*save).exit_code == 0
        assert venus(*save).exit_code == 0
    cases, findings = read_cases(tmp_path)
    assert (len(cases), findings) == (2, [])
    assert cases[1].expected == {"total": 1.0}


def test_without_a_scriptable_continuation_no_case_is_written(
    world: World, rollout: str, tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    with answered(world, state="done", result=with_case()):
        done = venus("rollouts", "branch", rollout, "--turn", "2", "--save-case", str(file))
    assert (done.exit_code, file.exists()) == (1, False)


def test_a_replay_that_diverged_is_an_error_with_its_turn(world: World, rollout: str) -> None:
    error = {"code": "replay_diverged", "detail": "turn 0: answered '1'"}
    with answered(world, state="failed", error=error):
        done = venus("rollouts", "branch", rollout, "--turn", "2")
    assert done.exit_code == 1
    assert "replay_diverged" in done.stderr
    assert "turn 0" in done.stderr
