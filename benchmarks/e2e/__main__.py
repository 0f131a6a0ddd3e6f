"""`python -m benchmarks.e2e [--minutes 60]`: the runs that the file lacks, block by block.

A block is a cell and a seed: its runs follow each other on one stack, `venus` among them, so that what the
machine does hits all alike. Finished runs are appended to a file of JSON lines; one that is there for the
same code and case is skipped, so an interrupted benchmark goes on where it was.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from benchmarks.e2e.cases import CELLS, SEEDS, STEPS, Case, all_cases, quick_cases, with_engines
from benchmarks.e2e.costs import measure
from benchmarks.e2e.quick import faults_of
from benchmarks.e2e.records import DEFAULT_FILE, Run, append, key_of, read_lines
from benchmarks.e2e.runner import RUN_S_MAX, bench
from benchmarks.engine.figures import spread
from benchmarks.schedule.arguments import minutes, natural, whole
from venusrl.client import VenusError

QUICK_RUN_S_MAX: Final = 180.0
"""Of one job of the short benchmark: twice what it takes on two free cores."""


def run_cases(
    cases: Sequence[Case],
    file: Path,
    until: float,
    limit_s: float = RUN_S_MAX,
    *,
    is_measuring: bool = True,
) -> Iterator[Run | None]:
    """Run what the file lacks until that time (of `time.monotonic`); None for a run that failed.

    `is_measuring`: what the engine costs on this machine comes first, for the simulated side.
    """
    known = {run.key for run in read_lines(file)}
    missing = [case for case in cases if key_of(case) not in known]
    costs = measure() if missing and is_measuring else None
    for (cell, _), block in groupby(missing, key=lambda case: (case.cell, case.seed)):
        if time.monotonic() >= until:
            return
        with bench(cell, costs) as stack:
            for case in block:
                if time.monotonic() >= until:
                    return
                try:
                    run, kept = stack.run(case, limit_s)
                except VenusError as error:
                    print(f"FAILED {case.title}: {error}", file=sys.stderr, flush=True)
                    yield None
                    continue
                append(file, run, kept)
                print(line_of(case, run), flush=True)
                yield run


def line_of(case: Case, run: Run) -> str:
    """One finished run."""
    return (
        f"{case.title}: {run.step_s:.2f} s a step, pressure {run.pressure:.2f}, in flight"
        f" {run.demand:.2f}, hit rate {run.hit_rate:.2f}, engine busy {run.engine_busy_share:.0%},"
        f" dropped {run.dropped_groups}"
    )


def chosen_cases(asked: argparse.Namespace) -> list[Case]:
    """The cases that the filters leave, in order."""
    cells = [with_engines(cell, asked.engines) for cell in CELLS if cell.name in asked.cells]
    cases = all_cases(cells, asked.seeds, asked.steps)
    if asked.part != "all":
        cases = [case for case in cases if bool(case.entry.off) == (asked.part == "ablation")]
    if asked.strategies:
        cases = [case for case in cases if case.entry.strategy.value in asked.strategies]
    return cases


def quick(file: Path) -> int:
    """The short benchmark: 1 when a run did not end whole or `venus` is behind."""
    file.unlink(missing_ok=True)
    runs = list(run_cases(quick_cases(), file, float("inf"), QUICK_RUN_S_MAX, is_measuring=False))
    faults = faults_of([run for run in runs if run is not None], len(quick_cases()))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{len(runs)} runs, {len(faults)} faults, {os.cpu_count()} cores")
    return 1 if faults else 0


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.e2e", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cells", nargs="+", default=[cell.name for cell in CELLS])
    parser.add_argument("--strategies", nargs="+", default=[])
    parser.add_argument("--part", choices=("all", "strategies", "ablation"), default="all")
    parser.add_argument("--seeds", nargs="+", type=whole, default=list(SEEDS))
    parser.add_argument("--steps", type=natural, default=STEPS)
    parser.add_argument("--engines", type=natural, default=1)
    parser.add_argument("--minutes", type=minutes, help="begin no run after so many")
    parser.add_argument("--file", type=Path)
    return parser


def main(words: Iterable[str] | None = None) -> int:
    """Run; 1 when a run failed."""
    parser = arguments()
    asked = parser.parse_args(None if words is None else list(words))
    if asked.quick:
        return quick(asked.file or DEFAULT_FILE.with_stem("e2e-quick"))
    cases = chosen_cases(asked)
    if not cases:
        parser.error("the benchmark has no run of these cells and strategies")
    until = float("inf") if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    runs = list(run_cases(cases, asked.file or DEFAULT_FILE, until))
    done = [run.step_s for run in runs if run is not None]
    said = f", {spread(done).text()} s a step" if done else ""
    print(f"{len(done)} runs, {len(runs) - len(done)} failed{said}")
    return 1 if len(done) < len(runs) else 0


if __name__ == "__main__":
    sys.exit(main())
