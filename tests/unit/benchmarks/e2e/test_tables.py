"""Ratios are within blocks; records are kept whole."""

from pathlib import Path

from benchmarks.e2e.records import Kept, append, read_kept, read_lines
from benchmarks.e2e.tables import baselines, table_of
from tests.unit.benchmarks.e2e.small import job, run

SYNC = "slime-sync published"


def test_a_ratio_is_to_venus_of_the_same_cell_and_seed() -> None:
    runs = [
        run(step_s=10.0), run(SYNC, 20.0),
        run(step_s=20.0, seed=2), run(SYNC, 50.0, seed=2),
        run(step_s=1.0, cell="low"),
    ]  # fmt: skip
    (row,) = baselines(table_of(runs, {})["pressure"])
    assert (row.ratio.least, row.ratio.most, row.ratio.count) == (2.0, 2.5, 2)
    assert row.simulated is None
    assert row.off_by is None


def test_a_run_without_venus_beside_it_has_no_ratio() -> None:
    assert table_of([run(SYNC, 20.0), run(step_s=10.0, seed=2)], {})["pressure"][0].entry != SYNC
    assert table_of([run(SYNC, 20.0)], {}) == {}


def test_a_simulated_ratio_needs_both_sides_of_every_pair() -> None:
    runs = [run(step_s=10.0), run(SYNC, 24.0)]
    seconds = {runs[0].key: 5.0, runs[1].key: 10.0}
    (row,) = baselines(table_of(runs, seconds)["pressure"])
    assert row.simulated is not None
    assert row.simulated.median == 2.0
    assert round(row.off_by or 0.0, 3) == 0.2
    (row,) = baselines(table_of(runs, {runs[0].key: 5.0})["pressure"])
    assert row.simulated is None


def test_ablation_is_no_baseline_and_stands_behind_the_strategies() -> None:
    runs = [run("venus normal without priority", 12.0, off=["priority"]), run(), run(SYNC, 20.0)]
    rows = table_of(runs, {})["pressure"]
    assert [row.entry for row in rows][:2] == ["venus normal", SYNC]
    assert [row.entry for row in baselines(rows)] == [SYNC]


def test_what_was_written_is_read_again_without_a_line_that_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "out" / "e2e.jsonl"
    file.parent.mkdir()
    kept = Kept(job(), (), {"rollout": {"group_size": 2}})
    append(file, run(), kept)
    with file.open("a") as lines:
        lines.write('{"cell": "pres')
    append(file, run(SYNC, 20.0), kept)
    found = list(read_lines(file))
    assert [one.entry for one in found] == ["venus normal", SYNC]
    assert read_kept(file, found[0].key) == kept
    assert read_kept(file, "unknown") is None
