"""What is compiled, from where a compiled run imports, and what counts as the same run."""

import os
from pathlib import Path

import pytest

from benchmarks.schedule.compiled import (
    INTERPRETED,
    differences,
    environment,
    imported_by_a_run,
    sources_of,
)
from benchmarks.schedule.records import CODE, ROOT


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


def test_everything_of_the_product_that_a_run_imports_decides_it() -> None:
    """Else a change there would leave records as they were, and a build could not import it."""
    packages = tuple(one.replace("/", ".") + "." for one in (*CODE, "benchmarks"))
    own = {one.name for one in ROOT.iterdir() if (one / "__init__.py").exists()}
    imported = [one for one in imported_by_a_run() if one.partition(".")[0] in own]
    above = {parent.as_posix() for one in CODE for parent in Path(one).parents}
    outside = [one for one in imported if not f"{one}.".startswith(packages) and one not in above]
    assert outside == []


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
