"""The simulated side of a recorded job, and the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.e2e.cases import LOW, STEPS, all_cases, spec_of
from benchmarks.e2e.costs import Costs, Work
from benchmarks.e2e.records import Kept, append
from benchmarks.e2e.report import markdown, report_of, write
from benchmarks.e2e.simulated import exact_groups, measured, simulated_step_s
from benchmarks.schedule.cases import VENUS
from domain.ids import repeat_of
from simulation.plan import CannotModel
from tests.unit.benchmarks.e2e.small import job, run

SYNC = "slime-sync published"
COSTS = Costs(step_s=0.01, kv_token_s=0.0, prefill_token_s=0.0001)


def kept(entry: str = VENUS.name) -> Kept:
    """The small job, with a spec of two groups of two in two steps."""
    (case,) = [one for one in all_cases((LOW,), (1,), STEPS) if one.entry.name == entry]
    spec = json.loads(json.dumps(spec_of(case, "m")))
    spec["rollout"] |= {"group_size": 2, "groups_per_batch": 1}
    spec["stop"] = {"max_steps": 2}
    spec["scheduling"]["order"] = "oldest"
    return Kept(job(), (), spec, COSTS)


def test_groups_are_as_recorded_also_when_their_task_is_done_again() -> None:
    groups = exact_groups(job())
    repeat = repeat_of(1)
    assert repeat is not None
    assert groups.group(1) == groups.group(repeat)
    assert [len(one.turns) for one in groups.group(0).members] == [2, 2]
    with pytest.raises(CannotModel, match="group 2"):
        groups.group(2)


def test_a_recorded_job_is_simulated_to_its_last_step() -> None:
    seconds = simulated_step_s(run(kv_pages=64, slots=4), kept(), kept(), (run(), kept()))
    assert seconds is not None
    # Generation and tools alone take 2.5 s of a rollout.
    assert 2.5 < seconds < 20.0
    assert seconds == simulated_step_s(run(kv_pages=64, slots=4), kept(), kept(), (run(), kept()))


def test_without_a_whole_reference_nothing_is_simulated() -> None:
    larger = kept()
    rollout = dict(larger.spec["rollout"])  # type: ignore[call-overload]
    larger.spec["rollout"] = rollout | {"group_size": 3}
    assert simulated_step_s(run(kv_pages=64, slots=4), larger, kept(), (run(), kept())) is None


def test_costs_are_those_that_the_engine_counted() -> None:
    """Sixteen steps of 60 ms and 32 tokens of 1.25 ms are the second that each turn took."""
    work = Work(8.0, 0.32, 128.0, 0.0, 256.0, 0.0)
    physics = measured(job(), COSTS, work)
    assert physics.turns == 8
    assert physics.engine.step_s == pytest.approx(0.06)
    assert physics.engine.prefill_token_s == pytest.approx(1.25e-3)
    assert physics.spread < 0.03
    assert physics.rates.sync_s == pytest.approx(0.3)


def test_the_page_shows_real_beside_simulated_and_what_was_left_out(tmp_path: Path) -> None:
    file = tmp_path / "e2e.jsonl"
    append(file, run(cell="low", code="other"), kept())
    for cell in ("low", "pressure"):
        append(file, run(cell=cell, kv_pages=64, slots=4), kept())
        append(file, run(SYNC, 25.0, cell=cell, kv_pages=64, slots=4), kept(SYNC))
    report = report_of(file)
    assert report.left_out == 1
    assert len(report.simulated) == 4
    text = markdown(report)
    assert "2.50 (2.50-2.50)" in text
    assert "missing" in text
    write(report, tmp_path / "docs")
    records = json.loads((tmp_path / "docs" / "e2e.json").read_text())
    assert {record["strategy"] for record in records} == {"venus", "slime-sync"}
    assert all(record["simulated_step_s"] > 0 for record in records)


def test_without_measured_costs_nothing_is_simulated() -> None:
    bare = replace(kept(), costs=None)
    assert simulated_step_s(run(kv_pages=64, slots=4), kept(), kept(), (run(), bare)) is None
