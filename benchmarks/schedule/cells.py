"""Many runs over processes: `python -m benchmarks.schedule.cells --minutes 60`.

Finished records are appended to a file of JSON lines. A run that is there already for the same fixed
numbers, code and case is skipped, so an interrupted benchmark goes on where it was. The order is always
the same, what is most useful first (`cases.ordered_cases`).
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Final

from benchmarks.fixed import fixed
from benchmarks.schedule.arguments import minutes, natural, whole
from benchmarks.schedule.cases import Case, ordered_cases
from benchmarks.schedule.records import ROOT, Context, Record, read_lines, write_line
from benchmarks.schedule.run import run_case

DEFAULT_FILE: Final = ROOT / "out" / "schedule.jsonl"

RUN_CPU_S_MAX: Final = 3_600.0
"""CPU seconds of one run; the longest (a pool without bound at `many`) takes a third of it. A model that
loops at one moment of virtual time must not hold a process for ever."""

Runner = Callable[[Case, Path | None], Record]


@dataclass(slots=True)
class Tally:
    """How a call went."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    left: int = 0
    """Not begun within the minutes."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Processes, and when to begin nothing more (of `time.monotonic`)."""

    processes: int
    until: float = float("inf")
    run_cpu_s: float = RUN_CPU_S_MAX


def run_cases(
    cases: Sequence[Case],
    file: Path,
    context: Context,
    effort: Effort,
    runner: Runner = run_case,
) -> Tally:
    """Run what the file lacks, append each record as it comes."""
    tally = Tally()
    known = {record.key for record in read_lines(file)}
    missing = []
    for case in cases:
        if case.key(context.parts) in known:
            tally.skipped += 1
        else:
            missing.append(case)
    file.parent.mkdir(parents=True, exist_ok=True)
    _end_last_line(file)
    with file.open("a") as lines:
        for case, record in _finished(missing, context, effort, runner):
            if isinstance(record, str):
                tally.failed += 1
                print(f"FAILED {_title(case)}: {record}", file=sys.stderr, flush=True)
                continue
            tally.done += 1
            lines.write(write_line(context.stamp(record, case.key(context.parts))))
            lines.flush()
            print(f"{_title(case)}: ratio {record.ratio:.3f}, {record.cpu_s:.1f} s CPU", flush=True)
    tally.left = len(missing) - tally.done - tally.failed
    return tally


def _title(case: Case) -> str:
    return f"{case.cell.title}, {case.entry.name}, seed {case.seed}"


def _end_last_line(file: Path) -> None:
    """A line that an interruption cut must not swallow the next one: it goes."""
    text = file.read_text() if file.exists() else ""
    if text and not text.endswith("\n"):
        file.write_text(text[: text.rfind("\n") + 1])


def _finished(
    cases: Sequence[Case], context: Context, effort: Effort, runner: Runner
) -> Iterator[tuple[Case, Record | str]]:
    """Each case with its record, or with what went wrong."""
    if effort.processes == 1:
        for case in cases:
            if time.monotonic() < effort.until:
                yield case, _guarded(runner, case, context.folder, effort.run_cpu_s)
        return
    # Forked processes keep the code that this one has read, whatever happens to the tree meanwhile.
    forks = multiprocessing.get_context("fork")
    waiting = iter(cases)
    with ProcessPoolExecutor(effort.processes, mp_context=forks) as pool:
        running: dict[Future[Record | str], Case] = {}
        while True:
            room = effort.processes - len(running)
            for case in islice(waiting, room if time.monotonic() < effort.until else 0):
                future = pool.submit(_guarded, runner, case, context.folder, effort.run_cpu_s)
                running[future] = case
            if not running:
                return
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(ended, key=lambda one: _title(running[one])):
                yield running.pop(future), future.result()


def _guarded(runner: Runner, case: Case, folder: Path | None, cpu_s: float) -> Record | str:
    """A run that fails or takes too long is told and does not end the others."""
    signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        return runner(case, folder)
    except (AssertionError, RuntimeError, ValueError, KeyError, IndexError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("took more CPU than any run may")


def chosen_cases(asked: argparse.Namespace) -> list[Case]:
    """The cases that the filters leave, in order."""
    regimes = [one for name, one in fixed().regimes.items() if name in asked.regimes]
    tiers = {"off": [False], "on": [True], "both": [False, True]}[asked.tier]
    cases = ordered_cases(regimes, tiers, asked.seeds, asked.batches)
    if asked.strategies:
        cases = [case for case in cases if case.entry.strategy.value in asked.strategies]
    if asked.variants:
        cases = [case for case in cases if case.entry.variant in asked.variants]
    return cases


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    full = fixed().full
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--regimes", nargs="+", default=list(full.regimes), choices=full.regimes)
    parser.add_argument("--strategies", nargs="+", default=[])
    parser.add_argument("--variants", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=whole, default=list(full.seeds))
    parser.add_argument("--batches", type=natural, default=full.batches)
    parser.add_argument("--tier", choices=("off", "on", "both"), default="both")
    parser.add_argument("--minutes", type=minutes, help="begin no run after so many")
    parser.add_argument("--processes", type=natural, default=os.cpu_count() or 1)
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE)
    return parser


def main() -> int:
    """Run the cells; 1 when a run failed."""
    parser = arguments()
    asked = parser.parse_args()
    cases = chosen_cases(asked)
    if not cases:
        parser.error("the benchmark has no run of these strategies and variants")
    until = float("inf") if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    context = Context()
    print(
        f"traces: {'recorded' if context.folder else 'fitted generator'}, code {context.code[:12]}"
    )
    tally = run_cases(cases, asked.file, context, Effort(asked.processes, until))
    print(tally)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
