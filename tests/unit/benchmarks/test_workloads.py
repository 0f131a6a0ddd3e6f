"""The workload of a regime, and how hard it presses on its engines."""

import gzip
import json
from pathlib import Path

import pytest

from benchmarks import workloads
from benchmarks.fixed import fixed
from benchmarks.workloads import TRACES_VARIABLE, source_of, traces_folder, workload_of
from simulation.summary import pressure


def test_traces_are_used_where_their_files_are(tmp_path: Path) -> None:
    turn = {"new_tokens": 9, "output_tokens": 5, "tool": "Read", "tool_seconds": 0.5}
    with gzip.open(tmp_path / "swe_glm.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"v": 1, "turns": [turn, turn]}) + "\n")
    assert source_of("swe_glm", tmp_path).name == "traces:swe_glm"
    drawn = workload_of(fixed().regimes["mid"], 1, tmp_path).group(0)
    assert {turn.new_tokens for one in drawn for turn in one.turns} <= {2_000, 9}


def test_the_generator_is_used_where_they_are_not(tmp_path: Path) -> None:
    assert source_of("swe_glm", tmp_path).name == "fitted:swe_glm"
    assert source_of("terminal_mini", None).name == "fitted:terminal_mini"


def test_the_environment_names_the_folder_and_a_wrong_name_is_no_wish_for_the_generator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path))
    assert traces_folder() == tmp_path
    monkeypatch.setenv(TRACES_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(NotADirectoryError, match=TRACES_VARIABLE):
        traces_folder()


def test_without_a_name_it_is_the_folder_beside_the_tree(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(TRACES_VARIABLE, raising=False)
    monkeypatch.setattr(workloads, "TRACES_BESIDE", tmp_path)
    assert traces_folder() == tmp_path
    monkeypatch.setattr(workloads, "TRACES_BESIDE", tmp_path / "none")
    assert traces_folder() is None


def test_regimes_that_differ_in_tools_alone_have_the_same_tokens() -> None:
    light, heavy = (
        workload_of(fixed().regimes[name], 3, None).group(2) for name in ("mid-light", "mid-heavy")
    )
    assert [one.context_tokens for one in light] == [one.context_tokens for one in heavy]
    assert [40 * one.tool_s for one in light] == pytest.approx([one.tool_s for one in heavy])


@pytest.mark.parametrize(("name", "expected"), [("low", 1.0), ("mid", 2.4), ("high", 4.7)])
def test_pressure_is_about_that_of_the_benchmarks_page(name: str, expected: float) -> None:
    regime = fixed().regimes[name]
    work = workload_of(regime, 1, None)
    found = pressure(
        (one for ordinal in range(200) for one in work.group(ordinal)),
        fixed().physics_of(regime),
        engines=regime.engines,
        rollouts=regime.groups_open_max * fixed().rollouts_per_group,
    )
    assert found == pytest.approx(expected, rel=0.06)
