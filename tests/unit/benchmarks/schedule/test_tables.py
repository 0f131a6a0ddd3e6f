"""Arithmetic of the report: medians, speed-ups, who is compared, what is a fault."""

import pytest

from benchmarks.schedule.cases import VENUS, Cell
from benchmarks.schedule.tables import best_within, faults_of, parity, speedup, table_of
from tests.unit.benchmarks.schedule.small import record

MID = Cell("mid", False)


def test_a_row_has_the_median_and_the_worst_of_its_seeds() -> None:
    steps = {1: 90.0, 2: 120.0, 3: 100.0}
    rows = table_of(record(step_s=step_s, seed=seed) for seed, step_s in steps.items())[MID]
    row = rows[VENUS.name]
    assert (row.step_s, row.worst_step_s, row.ratio, row.worst_ratio) == (100.0, 120.0, 2.0, 2.4)


def test_a_run_done_twice_counts_once() -> None:
    rows = table_of([record(step_s=90.0), record(step_s=80.0)])[MID]
    assert rows[VENUS.name].step_s == 80.0


def test_a_speed_up_pairs_seeds() -> None:
    ours = [record(step_s=100.0, seed=1), record(step_s=200.0, seed=2)]
    theirs = [record("ttl published", 150.0, seed) for seed in (2, 3)]
    rows = table_of([*ours, *theirs])[MID]
    assert speedup(rows[VENUS.name], rows["ttl published"]) == pytest.approx(0.75)


def test_the_best_is_the_fastest_within_a_and_m() -> None:
    beyond = record("slime-async published", 50.0, async_ratio=24.0, max_staleness=24)
    rows = table_of(
        [record(), beyond, record("ttl published", 98.0), record("aimd within", 110.0)]
    )[MID]
    best = best_within(rows)
    assert best is not None
    assert best.name == "ttl published"
    assert parity(rows) == pytest.approx(0.98)


def test_a_variant_of_venus_is_no_rival() -> None:
    rows = table_of([record(), record("venus normal without tiers", 50.0)])[MID]
    assert parity(rows) is None


def test_a_healthy_table_has_no_fault() -> None:
    assert faults_of(table_of([record(), record("ttl published", 98.0)])) == []


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (record("ttl published", 96.0), "venus reaches 0.960 of ttl published"),
        (record("ttl published", 300.0, staleness={"3": 1}), "staleness 3 above 2"),
        (record(dropped={"stale": 2}), "2 groups discarded"),
        (record("ttl published", 300.0, ratio=0.99), "beats its bound"),
    ],
)
def test_each_fault_is_named(bad: object, words: str) -> None:
    table = table_of([record(), bad])  # type: ignore[list-item]
    (fault,) = faults_of(table)
    assert words in fault
    assert "mid, host tier off" in fault


def test_a_baseline_may_discard() -> None:
    assert faults_of(table_of([record("aimd within", 300.0, dropped={"stale": 5})])) == []
