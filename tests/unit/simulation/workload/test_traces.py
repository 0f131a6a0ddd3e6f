"""Recorded trajectories as bases."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from simulation.workload.traces import TraceBases, read_traces, tool_of
from simulation.workload.trajectory import Tool, Trajectory, Turn


def turn(*, tool: str | None = "Read", tool_seconds: float | None = 0.5) -> dict[str, object]:
    return {"prompt_tokens": 90, "new_tokens": 9, "output_tokens": 5, "gen_seconds": 99.0,
            "tool": tool, "tool_seconds": tool_seconds, "obs_tokens": 4}  # fmt: skip


def written(tmp_path: Path, *rows: dict[str, object]) -> Path:
    path = tmp_path / "some.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_a_row_is_a_trajectory_whose_last_turn_runs_no_tool(tmp_path: Path) -> None:
    path = written(tmp_path, {"v": 1, "turns": [turn(), turn(tool="bash:other")]})
    expected = Trajectory((Turn(9, 5, Tool.READ, 0.5), Turn(9, 5, None, 0.0)))
    assert read_traces(path) == [expected]


def test_seconds_that_were_not_recorded_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, {"v": 1, "turns": [turn(tool_seconds=None), turn()]})
    assert read_traces(path)[0].turns[0].tool_s == 0.0


@pytest.mark.parametrize(
    "row", [{"v": 1, "turn_seconds": [1.0]}, {"v": 1, "turns": []}, {"v": 2, "turns": [turn()]}]
)
def test_rows_without_turns_or_of_another_version_are_refused(
    tmp_path: Path, row: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match="no trajectory of version 1"):
        read_traces(written(tmp_path, row))


def test_calls_made_together_are_named_after_the_slowest() -> None:
    assert tool_of("Edit+Read") is Tool.EDIT
    assert tool_of("TodoWrite+bash:python+bash:search") is Tool.BASH_PYTHON
    assert tool_of("Task") is Tool.OTHER
    assert tool_of(None) is None


def test_every_base_is_drawn_as_often_as_any_other() -> None:
    bases = TraceBases([Trajectory((Turn(i, 1, None, 0.0),)) for i in range(4)])
    chance = Random(1)
    drawn = [bases.draw(chance).turns[0].new_tokens for _ in range(4_000)]
    assert all(abs(drawn.count(i) - 1_000) < 120 for i in range(4))
