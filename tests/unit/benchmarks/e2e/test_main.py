"""Blocks share a stack, what is there is skipped, and a run that failed ends nothing else."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.e2e import __main__ as bench_main
from benchmarks.e2e.cases import LOW, PRESSURE, Case, Cell, all_cases
from benchmarks.e2e.costs import Costs
from benchmarks.e2e.records import Kept, Run, key_of, read_lines
from tests.unit.benchmarks.e2e.small import RUN, job
from venusrl.client import WaitTimeout

ENDLESS = float("inf")
COSTS = Costs(1e-2, 1e-7, 1e-4)


class Stacks:
    """Stands in for the platform: every case takes its number in seconds, some never end."""

    def __init__(self) -> None:
        self.started: list[Cell] = []
        self.ran: list[Case] = []
        self.stuck: set[str] = set()
        self.costs: list[Costs | None] = []

    @contextmanager
    def __call__(self, cell: Cell, costs: Costs | None = None) -> Iterator["Stacks"]:
        self.started.append(cell)
        self.costs.append(costs)
        yield self

    def run(self, case: Case, limit_s: float) -> tuple[Run, Kept]:
        self.ran.append(case)
        if case.entry.name in self.stuck:
            raise WaitTimeout(f"not within {limit_s} s")
        made = {**{name: getattr(RUN, name) for name in RUN.__slots__}, "key": key_of(case)}
        return Run(**{**made, "entry": case.entry.name}), Kept(job(), ())


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Stacks:
    made = Stacks()
    monkeypatch.setattr(bench_main, "bench", made)
    monkeypatch.setattr(bench_main, "measure", lambda: COSTS)
    return made


def cases() -> list[Case]:
    return [one for one in all_cases((LOW, PRESSURE), (1,), 4) if not one.entry.off]


def test_each_block_has_one_stack_and_what_is_there_is_not_run_again(
    stacks: Stacks, tmp_path: Path
) -> None:
    file = tmp_path / "e2e.jsonl"
    whole = cases()
    assert len(list(bench_main.run_cases(whole[:3], file, ENDLESS))) == 3
    assert stacks.started == [LOW]
    list(bench_main.run_cases(whole, file, ENDLESS))
    assert stacks.started == [LOW, LOW, PRESSURE]
    assert stacks.costs == [COSTS] * 3
    assert stacks.ran == whole
    assert [one.key for one in read_lines(file)] == [key_of(case) for case in whole]


def test_a_run_that_failed_is_told_and_tried_again_by_the_next_call(
    stacks: Stacks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e2e.jsonl"
    whole = cases()[:3]
    stacks.stuck = {whole[1].entry.name}
    found = list(bench_main.run_cases(whole, file, ENDLESS))
    assert [one is None for one in found] == [False, True, False]
    assert f"FAILED {whole[1].title}" in capsys.readouterr().err
    stacks.stuck = set()
    assert len(list(bench_main.run_cases(whole, file, ENDLESS))) == 1


def test_nothing_begins_when_the_minutes_are_over(stacks: Stacks, tmp_path: Path) -> None:
    found = list(bench_main.run_cases(cases(), tmp_path / "e2e.jsonl", time.monotonic()))
    assert found == []
    assert stacks.started == []


def test_the_short_run_fails_when_a_job_does_not_end(stacks: Stacks, tmp_path: Path) -> None:
    file = tmp_path / "quick.jsonl"
    assert bench_main.quick(file) == 0
    assert stacks.costs == [None]
    stacks.stuck = {"slime-sync published"}
    assert bench_main.quick(file) == 1


def test_filters_leave_the_cases_that_were_asked_for() -> None:
    parser = bench_main.arguments()
    words = ["--part", "ablation", "--seeds", "2", "--engines", "2"]
    found = bench_main.chosen_cases(parser.parse_args(words))
    assert found
    assert all(one.entry.off and one.seed == 2 and one.cell.engines == 2 for one in found)
    words = ["--cells", "low", "--strategies", "venus"]
    found = bench_main.chosen_cases(parser.parse_args(words))
    assert {(one.cell, one.entry.strategy.value) for one in found} == {(LOW, "venus")}
