"""Many runs: what is there is not run again, a cut line is, a failure ends nothing else."""

from pathlib import Path

from benchmarks.schedule.cases import Case
from benchmarks.schedule.cells import Effort, run_cases
from benchmarks.schedule.records import Record, read_lines
from tests.unit.benchmarks.schedule.small import CONTEXT, case, record

ALONE = Effort(1)


class Runner:
    """Answers with made-up records; remembers the seeds that it ran."""

    def __init__(self, failing: int | None = None) -> None:
        self.seeds: list[int] = []
        self.failing = failing

    def __call__(self, one: Case, folder: Path | None) -> Record:
        self.seeds.append(one.seed)
        assert one.seed != self.failing, "stands still"
        return record(seed=one.seed)


def test_an_interrupted_call_goes_on_where_it_was(tmp_path: Path) -> None:
    file, runner = tmp_path / "deep" / "runs.jsonl", Runner()
    run_cases([case(seed=1), case(seed=2)], file, CONTEXT, ALONE, runner)
    tally = run_cases([case(seed=seed) for seed in (1, 2, 3)], file, CONTEXT, ALONE, runner)
    assert runner.seeds == [1, 2, 3]
    assert (tally.done, tally.skipped, tally.failed, tally.left) == (1, 2, 0, 0)
    assert [one.seed for one in read_lines(file)] == [1, 2, 3]


def test_records_name_what_they_ran_on(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    run_cases([case()], file, CONTEXT, ALONE, Runner())
    (found,) = read_lines(file)
    assert (found.fixed, found.code, found.commit) == (CONTEXT.fixed, CONTEXT.code, "abc")
    assert found.key == case().key(CONTEXT.parts)


def test_a_line_that_was_cut_is_run_again(tmp_path: Path) -> None:
    file, runner = tmp_path / "runs.jsonl", Runner()
    run_cases([case(seed=1), case(seed=2)], file, CONTEXT, ALONE, runner)
    file.write_text(file.read_text()[:-40])
    run_cases([case(seed=1), case(seed=2)], file, CONTEXT, ALONE, runner)
    assert runner.seeds == [1, 2, 2]
    assert [one.seed for one in read_lines(file)] == [1, 2]


def test_a_run_that_fails_is_counted_and_the_others_go_on(tmp_path: Path) -> None:
    file, runner = tmp_path / "runs.jsonl", Runner(failing=1)
    tally = run_cases([case(seed=1), case(seed=2)], file, CONTEXT, ALONE, runner)
    assert (tally.done, tally.failed) == (1, 1)
    assert [one.seed for one in read_lines(file)] == [2]


def test_nothing_begins_after_the_minutes(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    tally = run_cases([case()], file, CONTEXT, Effort(1, until=0.0), Runner())
    assert (tally.done, tally.left) == (0, 1)


def test_processes_give_the_records_of_one(tmp_path: Path) -> None:
    cases = [case(seed=seed) for seed in (1, 2, 3)]
    for processes in (1, 2):
        run_cases(cases, tmp_path / f"{processes}.jsonl", CONTEXT, Effort(processes), Runner())
    one, two = (list(read_lines(tmp_path / f"{n}.jsonl")) for n in (1, 2))
    assert sorted(two, key=lambda found: found.seed) == one


def test_a_run_that_loops_is_given_up(tmp_path: Path) -> None:
    def loop(one: Case, folder: Path | None) -> Record:
        while one.seed == 1:
            pass
        return record(seed=one.seed)

    file = tmp_path / "runs.jsonl"
    effort = Effort(1, run_cpu_s=0.01)
    tally = run_cases([case(seed=1), case(seed=2)], file, CONTEXT, effort, loop)
    assert (tally.done, tally.failed) == (1, 1)
