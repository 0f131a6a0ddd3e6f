"""Command lines of single runs: only what a job may set runs, and the record says on what it ran."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.schedule import cells, run
from benchmarks.schedule.arguments import CHOSEN, case_of, knob_fault
from benchmarks.schedule.cases import PUBLISHED, Bounds, Case, tuned_knobs
from benchmarks.schedule.records import Record
from domain.plan import Mechanism, StrategyName
from tests.unit.benchmarks.schedule.small import CONTEXT, record


def case(*words: str) -> Case:
    return case_of(argparse.ArgumentParser(), words)


def test_a_command_line_names_a_run() -> None:
    found = case("mid", "venus", "--tier", "--seed", "3", "--off", "tiers", "--batches", "2")
    assert (found.cell.regime, found.cell.has_host_tier) == ("mid", True)
    assert (found.seed, found.batches, found.entry.off) == (3, 2, (Mechanism.TIERS,))


def test_a_run_with_numbers_of_its_own_is_none_of_the_benchmarks() -> None:
    found = case("mid", "aimd", "--knob", "growth=1.5", "cancels=0", "-a", "2", "-m", "0").entry
    assert (found.strategy, found.variant) == (StrategyName.AIMD, CHOSEN)
    assert found.knobs == (("cancels", 0.0), ("growth", 1.5))
    assert found.bounds == Bounds(2.0, 0)
    assert case("mid-light", "slime-sync").entry.variant == PUBLISHED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("venus", "--knob", "foo=1"), "venus has no knob foo"),
        (("slime-sync", "--knob", "over_sampling"), "over_sampling is not NAME=VALUE"),
        (("slime-sync", "--knob", "over_sampling=nan"), "nan is no number"),
        (("slime-sync", "--knob", "over_sampling=9"), "a number from 1 to 4, not 9"),
        (("slime-bounded", "--knob", "lag_max=1.5"), "a whole number from 0 to 64"),
        (("aimd", "--knob", "growth=1.1", "growth=1.2"), "--knob names growth twice"),
        (("aimd", "--knob", "soft_usage=0.95"), "soft_usage 0.95 is above hard_usage 0.9"),
        (("venus", "--off", "tiers", "tiers"), "--off names tiers twice"),
        (("venus", "-a", "nan"), "nan is no number"),
        (("venus", "-a", "0.5"), "0.5 is no number from 1 on"),
        (("venus", "-m", "-1"), "-1 is no whole number from 0 on"),
        (("venus", "--seed", "-1"), "-1 is no whole number from 0 on"),
        (("venus", "--batches", "0"), "0 is no whole number from 1 on"),
    ],
)
def test_what_no_job_may_set_is_refused_before_anything_runs(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        case("mid", *words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_printed_record_names_what_it_ran_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(case: Case, folder: Path | None) -> Record:
        return record(case.entry.name, seed=case.seed)

    monkeypatch.setattr(run, "run_case", ran)
    monkeypatch.setattr(run, "Context", lambda: CONTEXT)
    run.main(["mid", "venus", "--seed", "2"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["fixed"], printed["code"], printed["commit"]) == ("f" * 64, "c" * 64, "abc")
    assert printed["key"] == case("mid", "venus", "--seed", "2").key(CONTEXT.parts)


def test_cells_without_a_run_are_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["cells", "--strategies", "venice"])
    with pytest.raises(SystemExit):
        cells.main()
    assert "no run of these strategies" in capsys.readouterr().err


def test_the_tuned_baselines_have_numbers_that_a_job_may_set() -> None:
    for strategy, numbers in tuned_knobs().items():
        assert knob_fault(strategy, numbers) is None, strategy
