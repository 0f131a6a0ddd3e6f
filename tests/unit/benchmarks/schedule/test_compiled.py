"""What is compiled, from where a compiled run imports, and what counts as the same run."""

import os
from pathlib import Path

import pytest

from benchmarks.schedule.compiled import INTERPRETED, differences, environment, sources_of
from benchmarks.schedule.records import ROOT


def test_modules_and_packages_of_what_decides_a_run_are_compiled_and_nothing_else() -> None:
    modules = ["scheduler.core.order", "scheduler.core.strategies", "json", "scheduler.main", "kv"]
    assert sources_of(modules) == [
        "scheduler/core/order.py",
        "scheduler/core/strategies/__init__.py",
    ]


@pytest.mark.parametrize("module", sorted(INTERPRETED))
def test_what_stays_interpreted_is_there_and_is_left_out(module: str) -> None:
    assert Path(ROOT, *module.split(".")).with_suffix(".py").is_file()
    assert sources_of([module]) == []


def test_a_build_comes_before_the_tree_and_the_folder_of_the_call_before_neither(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", "more")
    built, plain = environment(tmp_path), environment(None)
    assert built["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), str(ROOT), "more"]
    assert plain["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "more"]
    assert built["PYTHONSAFEPATH"] == plain["PYTHONSAFEPATH"] == "1"


def test_two_runs_of_a_case_may_differ_in_their_cpu_alone() -> None:
    left = {"ratio": 1.25, "cpu_s": 3.0, "moves": 2}
    assert differences(left, {**left, "cpu_s": 1.0}) == []
    assert differences(left, {"ratio": 1.2500001, "cpu_s": 3.0, "events": 5}) == [
        "events", "moves", "ratio",
    ]  # fmt: skip
