"""The small benchmark of CI: `make bench-schedule QUICK=1`.

Three regimes with the host tier off and on, `venus` and five baselines, a few batches and two seeds.
Exits with 1 when `venus` is below 0.97 of the best baseline within a and m, when it got slower (`SLOWEST`),
when a run beats its bound or does not end, when a group is staler than allowed, or when `venus` discards one.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.fixed import fixed
from benchmarks.schedule.arguments import natural
from benchmarks.schedule.cases import VENUS, Case, Cell, main_entry
from benchmarks.schedule.cells import Effort, run_cases
from benchmarks.schedule.records import Context, read_lines
from benchmarks.schedule.tables import Table, faults_of, speedup, table_of
from domain.plan import StrategyName

STRONGEST: Final = (
    StrategyName.SLIME_SYNC,
    StrategyName.SLIME_BOUNDED,
    StrategyName.ROLLFLASH,
    StrategyName.THUNDERAGENT_PAPER,
    StrategyName.TTL,
)
"""Baselines of the quick run, by their defaults within the regime's a and m."""

SLOWEST: Final = {Cell("mid", False): 1.51, Cell("mid", True): 1.34}
"""Ratios of `venus` to the bound that no change of the code may pass: 4 % above what was measured (1.45 and
1.29 with recorded traces, 1.46 and 1.29 with fitted ones). Runs are functions of the code, so a neighbour on
the machine changes nothing; a change that moves one decision moves the ratio by up to 2 %."""

RUN_CPU_S_MAX: Final = 60.0
"""CPU seconds of one run; the longest takes a tenth."""


def quick_cases() -> list[Case]:
    """The costly ones first, so that no process is left with one at the end."""
    size = fixed().quick
    cases = [
        Case(Cell(name, tier), entry, seed, size.batches)
        for name in reversed(size.regimes)
        for tier in (False, True)
        for seed in size.seeds
        for entry in (VENUS, *(main_entry(one, fixed().regimes[name]) for one in STRONGEST))
    ]
    assert len(cases) == len(size.regimes) * 2 * len(size.seeds) * (1 + len(STRONGEST))
    return cases


def lines_of(table: Table) -> list[str]:
    """A line for each cell and strategy."""
    lines = []
    for cell, rows in table.items():
        venus = rows.get(VENUS.name)
        for row in rows.values():
            faster = None if venus is None else speedup(venus, row)
            said = "" if faster is None or row is venus else f", venus {faster:.2f} times as fast"
            lines.append(
                f"{cell.title}: {row.name}: {row.step_s:.0f} s a step, simulated; "
                f"{row.ratio:.2f} of the bound, hit rate {row.hit_rate:.2f}{said}"
            )
    return lines


def slower(table: Table) -> list[str]:
    """Cells in which `venus` got slower than it was."""
    rows = {cell: table[cell][VENUS.name] for cell in SLOWEST if VENUS.name in table.get(cell, {})}
    return [
        f"{cell.title}: venus is at {row.ratio:.3f} of the bound, above {SLOWEST[cell]}"
        for cell, row in rows.items()
        if row.ratio > SLOWEST[cell]
    ]


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=natural, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    context = Context()
    print(f"fixed numbers {context.fixed[:12]}, code {context.code[:12]}, commit {context.commit}")
    print(f"traces: {'recorded' if context.folder else 'fitted generator'}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "quick.jsonl"
        tally = run_cases(
            quick_cases(), file, context, Effort(asked.processes, run_cpu_s=RUN_CPU_S_MAX)
        )
        table = table_of(read_lines(file))
    faults = [*faults_of(table), *slower(table)]
    print("\n".join(lines_of(table)))
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{tally.done} runs, {tally.failed} failed, {len(faults)} faults")
    return 1 if faults or tally.failed or not tally.done else 0


if __name__ == "__main__":
    sys.exit(main())
