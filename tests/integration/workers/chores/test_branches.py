"""Branches of a recorded rollout: its environment, its sandboxes and a model, in the chore's process."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from domain.trajectory import Trajectory
from infra.codec import from_msgpack
from infra.names import BRANCH_ROLLOUT
from stores import tables as t
from tests.integration.workers.chores.recorded import (
    ANSWERS,
    ROLLOUT,
    SPEC,
    contents,
    insert_record,
    package_of,
    record_of,
)
from tests.integration.workers.chores.test_generate import (
    ask,
    checkpointed,
    outcome,
    settings,
    world,
)
from tests.integration.workers.trainer.world import World
from tests.support.requirements import requires
from venusrl.env.host.cases import read_cases
from venusrl.models.branches import BranchResult
from workers.chores import main

__all__ = ["world"]

pytestmark = [pytest.mark.integration, requires("bwrap")]


async def branched(
    world: World, record: Trajectory, package: Path, **asked: object
) -> Mapping[str, Any]:
    """The row of a branch that has ended."""
    world.spec = SPEC
    checkpoint = await checkpointed(world)
    await insert_record(world, record, package)
    request = {"rollout_id": ROLLOUT, "checkpoint_id": checkpoint, "n": 2, **asked}
    operation = await ask(world, request, BRANCH_ROLLOUT)
    assert await main.run(settings(world), operation) == 0
    return dict((await outcome(world))._mapping)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package that the rollout was recorded with."""
    return package_of(tmp_path / "package")


@pytest.fixture
async def record(package: Path, tmp_path: Path) -> Trajectory:
    """The recorded rollout."""
    return await record_of(package, tmp_path / "scratch")


async def test_eight_continuations_live_on_the_same_files_and_the_recorded_tokens(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, record, package, turns=[3], n=8)
    assert (row["state"], row["error"]) == ("done", None)
    result = BranchResult.model_validate(row["result"])
    assert (result.runtime, result.restored, result.not_played) == ("process", "files", [])
    (border,) = result.borders
    assert (border.turn, border.live, len(border.continuations)) == (3, 8, 8)
    assert (border.files, border.differing_files) == (2, [])
    assert len({one.files_sha256 for one in border.continuations}) == 1
    assert border.prefix_tokens == record.turns[3].start
    assert border.scored + sum(c.verdict == "unscorable" for c in border.continuations) == 8

    stored = [one["trajectory"] for one in row["result"]["borders"][0]["continuations"]]
    made = [
        from_msgpack(await world.blobs.read(one["uri"], one["sha"]), Trajectory) for one in stored
    ]
    start = record.turns[3].start
    before = len(record.messages) - 3  # c4, its answer and a5 lie behind the border
    for one in made:
        assert one.segments[0].token_ids[:start] == record.segments[0].token_ids[:start]
        assert one.segments[0].versions[:start] == record.segments[0].versions[:start]
        assert one.messages[:before] == record.messages[:before]
        assert len(one.turns) >= 4
        assert one.end in ("done", "truncated", "turn_limit", "context_overflow")
    assert len({one.segments[0].token_ids for one in made}) > 1, "each samples by a seed of its own"


async def test_a_branch_is_never_a_group_of_its_job(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, record, package, turns=[1])
    assert row["state"] == "done"
    async with world.database.begin() as connection:
        for table in (t.rollout_group, t.rollout):
            count = await connection.scalar(select(func.count()).select_from(table))
            assert count == 1
        assert await connection.scalar(select(func.count()).select_from(t.batch_member)) == 0


async def test_the_curve_has_a_row_for_each_turn_and_turn_0_starts_anew(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, record, package, turns=list(range(len(ANSWERS))))
    result = BranchResult.model_validate(row["result"])
    assert [one.turn for one in result.borders] == [0, 1, 2, 3, 4]
    assert [one.prefix_tokens for one in result.borders] == [s.start for s in record.turns]
    assert [one.files for one in result.borders] == [1, 2, 2, 2, 2]
    sums = [one.continuations[0].files_sha256 for one in result.borders]
    assert len(set(sums)) == 5, "each turn wrote to the log"
    for one in result.borders:
        assert one.pass_rate is None or one.pass_rate == one.passed / one.scored


async def test_an_environment_that_answers_otherwise_is_refused_by_the_turn(
    world: World, record: Trajectory, tmp_path: Path
) -> None:
    changed = package_of(tmp_path / "changed", most=7)
    row = await branched(world, record, changed, turns=[3])
    assert (row["state"], row["error"]["code"]) == ("failed", "replay_diverged")
    assert row["error"]["detail"].startswith("turn 0: answered ")


async def test_a_record_with_other_tokens_is_refused(
    world: World, record: Trajectory, package: Path
) -> None:
    segment = record.segments[0]
    ids = list(segment.token_ids)
    ids[record.turns[1].start - 2] += 1  # in the tool's answer: its message says another digit
    damaged = replace(record, segments=(replace(segment, token_ids=tuple(ids)),))
    row = await branched(world, damaged, package, turns=[2])
    assert (row["state"], row["error"]["code"]) == ("failed", "replay_diverged")
    assert "other tokens" in row["error"]["detail"]


async def test_the_last_tool_output_is_replaced_for_the_model_alone(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, record, package, turns=[2], tool_output="77")
    result = BranchResult.model_validate(row["result"])
    (border,) = result.borders
    assert result.tool_output
    assert (border.live, border.differing_files) == (2, [])
    assert all(one.case is None for one in border.continuations), "no script gives that answer"
    one = row["result"]["borders"][0]["continuations"][0]["trajectory"]
    made = from_msgpack(await world.blobs.read(one["uri"], one["sha"]), Trajectory)
    assert contents(made.messages)[:5] == [*contents(record.messages)[:4], "77"]
    assert contents(record.messages)[4] != "77"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"turns": [5]}, "no_such_turn"),
        ({"turns": [0], "tool_output": "1"}, "no_tool_output"),
        ({"turns": [1], "rollout_id": "ro_none"}, "not_found"),
        ({"turns": [1], "checkpoint_id": "ckpt_none"}, "not_found"),
        ({"turns": "all"}, "bad_request"),
    ],
)
async def test_what_cannot_be_branched_fails_with_its_code(
    world: World, record: Trajectory, package: Path, asked: dict[str, object], code: str
) -> None:
    row = await branched(world, record, package, **asked)
    assert (row["state"], row["error"]["code"]) == ("failed", code)


async def test_an_inexact_record_is_not_branched(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, replace(record, metrics={"drift": 1.0}), package, turns=[1])
    assert row["error"]["code"] == "not_branchable"


async def test_a_continuation_is_a_case_that_the_package_can_read(
    world: World, record: Trajectory, package: Path
) -> None:
    row = await branched(world, record, package, turns=[4], n=8)
    result = BranchResult.model_validate(row["result"])
    lines = [one.case for one in result.borders[0].continuations if one.case is not None]
    assert lines, "an answer in the model's own form ends with done"
    (package / "cases").mkdir()
    (package / "cases" / "b.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    cases, findings = read_cases(package)
    assert findings == []
    assert {one.task for one in cases} == {"train-7"}
    for one in cases:
        assert [turn.tool_calls[0].arguments for turn in one.turns[:4]]
        assert one.turns[0].replies == (contents(record.messages)[2],)
        assert one.expected["total"] in (0.0, 1.0)
