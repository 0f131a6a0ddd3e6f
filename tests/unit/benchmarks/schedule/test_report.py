"""The page, its data and its pictures."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.schedule.cases import VENUS
from benchmarks.schedule.plots import Bars, bars, lines
from benchmarks.schedule.report import markdown, report_of, write
from tests.unit.benchmarks.schedule.small import record

RUNS = [
    record(step_s=60.0),
    record("ttl published", 90.0),
    record("slime-async published", 150.0, async_ratio=24.0, max_staleness=24),
    record("venus normal without tiers", 66.0),
    record("venus normal nearest predictor 0.5", 57.0),
]


def test_every_line_of_a_cell_states_the_host_tier_and_who_is_beyond_the_bounds() -> None:
    lines_ = markdown(report_of(RUNS)).splitlines()
    (ttl,) = (line for line in lines_ if line.startswith("| ttl published"))
    (pool,) = (line for line in lines_ if line.startswith("| slime-async published"))
    assert [part.strip() for part in ttl.split("|")[2:8]] == [
        "off", "1.5, 2", "90", "90", "1.800", "1.50",
    ]  # fmt: skip
    assert pool.endswith("beyond |")
    assert not ttl.endswith("beyond |")


def test_an_ablation_is_seconds_beside_those_of_venus() -> None:
    text = markdown(report_of(RUNS))
    assert "| tiers | 1.100 |" in text
    assert "| 0.5 | 0.950 |" in text


def test_the_order_stands_beside_a_drawn_one() -> None:
    text = markdown(report_of([*RUNS, record("random normal", 54.0)]))
    assert "0.900 times as fast, median of 1 cells" in text
    assert "in 1 cells `random` is faster" in text
    assert "`random` was not run." in markdown(report_of(RUNS))


def test_records_of_other_code_are_left_out_and_counted() -> None:
    report = report_of([record("ttl published", code="old"), record(code="new")])
    assert report.left_out == 1
    assert list(report.table[record().cell]) == [VENUS.name]


def test_the_files_hold_every_record_and_say_that_they_are_simulated(tmp_path: Path) -> None:
    write(report_of(RUNS), tmp_path)
    data = json.loads((tmp_path / "schedule.json").read_text())
    assert data["simulated"] is True
    assert [row["name"] for row in data["records"]] == [one.name for one in RUNS]
    page = (tmp_path / "schedule.md").read_text()
    for picture in tmp_path.glob("*.svg"):
        ElementTree.parse(picture)
        assert f"]({picture.name})" in page
    assert {one.stem for one in tmp_path.glob("*.svg")} == {"ratios-tier-off", "predictor"}


def test_a_bar_is_as_long_as_its_value_and_a_missing_one_is_none() -> None:
    chart = Bars("a < b", [("mid", [2.0, None, 4.0])], ["x", "y", "z"], 4.0)
    picture = ElementTree.fromstring(bars(chart))
    widths = [
        float(one.get("width", "0"))
        for one in picture.iter("{http://www.w3.org/2000/svg}rect")
        if one.get("height") == "8"
    ]
    assert widths == [310.0, 620.0]


def test_lines_leave_out_what_was_not_run() -> None:
    picture = ElementTree.fromstring(lines("t", [0.0, 1.0], {"a": [1.0, None], "b": [1.0, 2.0]}))
    points = [
        one.get("points", "").split()
        for one in picture.iter("{http://www.w3.org/2000/svg}polyline")
    ]
    assert [len(one) for one in points] == [1, 2]
