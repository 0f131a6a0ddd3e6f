"""The targets: passed, failed, or not run."""

import pytest

from benchmarks.schedule.cases import ENDLESS, ORACLES, UNPREDICTED, VENUS
from benchmarks.schedule.checks import Check, all_checks
from benchmarks.schedule.records import Record
from benchmarks.schedule.tables import table_of
from tests.unit.benchmarks.schedule.small import record


def check(words: str, *records: Record) -> Check:
    """The one check of these words."""
    (found,) = (one for one in all_checks(table_of(records)) if words in one.what)
    return found


def test_what_was_not_run_is_neither_passed_nor_failed() -> None:
    found = check("ratio to the bound: high, host tier on", record())
    assert (found.passed, found.verdict) == (None, "missing")


@pytest.mark.parametrize(("step_s", "passed"), [(64.9, True), (65.1, False)])
def test_the_ratio_to_the_bound_is_the_median_of_seeds(step_s: float, passed: bool) -> None:
    found = check(
        "ratio to the bound: mid, host tier off",
        record(step_s=step_s, seed=1),
        record(step_s=60.0, seed=2),
        record(step_s=90.0, seed=3),
    )
    assert found.passed is passed


def test_the_published_baseline_is_judged_and_the_tuned_one_stands_beside_it() -> None:
    found = check(
        "over rollflash as published",
        record(regime="high", step_s=100.0),
        record("rollflash published", 400.0, regime="high", async_ratio=2.0),
        record("rollflash tuned", 200.0, regime="high"),
    )
    assert found.passed
    assert found.reached == "4.00; best within a and m (rollflash tuned): 2.00, ceiling 4.00"


def test_the_better_thunderagent_counts() -> None:
    found = check(
        "better thunderagent: mid",
        record(step_s=100.0),
        record("thunderagent-paper published", 120.0),
        record("thunderagent-upstream tuned", 110.0),
    )
    assert not found.passed
    assert found.reached == "1.10 (thunderagent-upstream tuned); as published 1.20"


def test_staleness_and_discards_of_venus_are_counted_over_all_cells() -> None:
    bad = record(regime="low", staleness={"3": 1}, dropped={"stale": 4})
    assert check("staleness of every batch", record(), bad).reached == (
        "3 (low, host tier off), 2 cells"
    )
    assert check("groups that venus discards", record(), bad).passed is False
    assert check("groups that venus discards", record()).passed is True


def test_the_predictor_may_cost_two_hundredths_of_the_oracle() -> None:
    """Of the fastest one, by any order that asks it; one order alone is no answer."""
    nearest, longest = record(ORACLES[0].name, 98.5), record(ORACLES[1].name, 99.5)
    assert check("predictor off", nearest, longest, record(UNPREDICTED.name, 100.0)).passed is True
    assert check("predictor off", nearest, longest, record(UNPREDICTED.name, 101.0)).passed is False
    assert check("predictor off", longest, record(UNPREDICTED.name, 100.0)).passed is None


def test_the_bound_on_staleness_may_cost_two_hundredths() -> None:
    endless = record(ENDLESS.name, 100.0, max_staleness=24)
    assert check("beside unbounded", endless, record(VENUS.name, 101.9)).passed is True
    assert check("beside unbounded", endless, record(VENUS.name, 102.1)).passed is False


def test_a_cell_without_any_run_is_missing_and_not_left_out() -> None:
    against = [one for one in all_checks(table_of([])) if one.what.startswith("against the best")]
    assert len(against) == 32
    assert {one.verdict for one in against} == {"missing"}
