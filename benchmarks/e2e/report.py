"""The readable report: `python -m benchmarks.e2e.report`, from `out/e2e.jsonl` to `docs/benchmarks/`.

Writes `e2e.md` and `e2e.json` (every record, and the simulated seconds beside it). Records of one code
and number of steps are reported, those of the last record; others are left out and counted.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.e2e.cases import CELLS, CROWD, ENVIRONMENT
from benchmarks.e2e.checks import all_checks
from benchmarks.e2e.records import DEFAULT_FILE, Kept, Run, read_kept, read_lines
from benchmarks.e2e.simulated import Physics, measured, simulated_step_s, work_of
from benchmarks.e2e.tables import Row, Simulated, Table, table_of
from benchmarks.markdown import checks_section, grid
from benchmarks.schedule.cases import VENUS
from benchmarks.schedule.records import ROOT, rounded
from simulation.plan import CannotModel

FOLDER: Final = ROOT / "docs" / "benchmarks"

REFERENCE_CELL: Final = "low"
"""Where costs are measured: nothing is computed twice there."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is written."""

    runs: Sequence[Run]
    left_out: int
    simulated: Simulated
    physics: dict[tuple[int, str], Physics]
    """By seed."""

    @property
    def table(self) -> Table:
        """Rows by cell."""
        return table_of(self.runs, self.simulated)


def report_of(file: Path) -> Report:
    """What of a file belongs together, simulated beside it."""
    every = list(read_lines(file))
    assert every, "no record: run benchmarks.e2e first"
    last = every[-1]
    runs = [
        one
        for one in every
        if (one.code, one.steps, one.engines) == (last.code, last.steps, last.engines)
    ]
    at_low = {
        (one.seed, one.entry): (one, kept)
        for one in runs
        if one.cell == REFERENCE_CELL
        if (kept := read_kept(file, one.key)) is not None
    }
    simulated = dict(_simulated(file, runs, at_low))
    physics = {}
    for place, (one, kept) in sorted(at_low.items(), key=lambda pair: pair[0]):
        if kept.costs is not None:
            with suppress(CannotModel):
                physics[place] = measured(kept.job, kept.costs, work_of(one))
    return Report(runs, len(every) - len(runs), simulated, physics)


def _simulated(
    file: Path, runs: Sequence[Run], at_low: dict[tuple[int, str], tuple[Run, Kept]]
) -> Iterable[tuple[str, float]]:
    for run in runs:
        kept, reference = read_kept(file, run.key), at_low.get((run.seed, VENUS.name))
        if kept is None or reference is None or run.cell == CROWD.name:
            continue
        # With a switch off there is no run at low pressure: the machine is shared as under `venus`.
        own = at_low.get((run.seed, run.entry), reference)
        seconds = simulated_step_s(run, kept, reference[1], own)
        if seconds is not None:
            yield run.key, seconds


def markdown(report: Report) -> str:
    """The whole page."""
    table = report.table
    parts = [
        _head(report),
        "## What it must show\n\n" + checks_section(all_checks(report.runs, table)),
        "## Strategies\n\n" + _legend(),
        *(_cell(name, table[name]) for name in _cells(table)),
        "## One mechanism off at a time\n\n" + _ablation(table),
        "## Waiting for the coordinator\n\n" + _coordinator(report.runs),
        "## What was measured of the engine\n\n" + _physics(report),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _cells(table: Table) -> list[str]:
    return [cell.name for cell in CELLS if cell.name in table]


def _head(report: Report) -> str:
    last = report.runs[-1]
    commits = sorted({one.commit for one in report.runs})
    seeds = sorted({one.seed for one in report.runs})
    loads = [one.load for one in report.runs]
    return "\n".join(
        [
            "# End to end: the real stack",
            "",
            (
                "Wall-clock times of real jobs: Postgres, broker, scheduler, embedded engines, a trainer"
                " and a node with `process` sandboxes on one machine. Columns that are simulated say so."
                " `docs/benchmarks.md` says what is fixed and how to read this page."
            ),
            "",
            f"- machine: {last.machine}; commit {', '.join(commits)}; code `{last.code}`",
            (
                f"- {last.steps} steps, seeds {', '.join(map(str, seeds))}, {len(report.runs)} runs,"
                f" engines {last.engines}, environment `{ENVIRONMENT}`, host tier off for everybody"
            ),
            f"- load average before a run: {min(loads):.1f} to {max(loads):.1f}",
            f"- records of other code or sizes in the file, left out: {report.left_out}",
        ]
    )


def _legend() -> str:
    return (
        "Seconds a step: from the first group's opening to the last commit, over the steps. `venus x`:"
        " how many times as fast `venus` was in the same block of runs; median, least and most of the"
        " seeds; beside it the same over the steps after the first, where groups that were begun before"
        " it are for free. Simulated: the same ratio in virtual time by the costs below. In flight: mean"
        " contexts that a run really had on the device's pages. **Beyond**: holds more or older groups"
        " than a and m of the cell.\n"
    )


def _cell(name: str, rows: Sequence[Row]) -> str:
    shown = [row for row in rows if not row.runs[0].off]
    head = (
        "strategy", "a, m", "s / step", "venus x", "after the first", "simulated", "off by",
        "in flight", "hit", "busy", "dropped", "",
    )  # fmt: skip
    found = [run.pressure for row in shown for run in row.runs]
    pages = shown[0].runs[0].kv_pages
    text = f"### {name}: {pages} pages an engine, pressure {min(found):.2f} to {max(found):.2f}\n\n"
    return text + grid(head, [_line(row) for row in shown])


def _line(row: Row) -> tuple[str, ...]:
    first, count = row.runs[0], len(row.runs)
    off_by = row.off_by
    return (
        row.entry,
        f"{first.async_ratio:g}, {first.max_staleness}",
        row.step_s.text(),
        row.ratio.text(),
        row.later_ratio.text(),
        "-" if row.simulated is None else row.simulated.text(),
        "-" if off_by is None else f"{off_by:+.0%}",
        f"{sum(run.demand for run in row.runs) / count:.2f}",
        f"{sum(run.hit_rate for run in row.runs) / count:.2f}",
        f"{sum(run.engine_busy_share for run in row.runs) / count:.0%}",
        str(sum(run.dropped_groups for run in row.runs)),
        "" if row.is_within else "beyond",
    )


def _ablation(table: Table) -> str:
    rows = [row for name in _cells(table) for row in table[name] if row.runs[0].off]
    if not rows:
        return "Not run.\n"
    text = "Seconds a step beside those of `venus` with everything on, in the same block; above 1 the\n"
    text += "mechanism helps here. With one engine nothing can migrate.\n\n"
    head = ("cell", "off", "s / step", "venus x", "simulated", "hit")
    lines = [
        (
            row.cell,
            ", ".join(row.runs[0].off),
            row.step_s.text(),
            row.ratio.text(),
            "-" if row.simulated is None else row.simulated.text(),
            f"{sum(run.hit_rate for run in row.runs) / len(row.runs):.2f}",
        )
        for row in rows
    ]
    return text + grid(head, lines)


def _coordinator(runs: Sequence[Run]) -> str:
    """Between two turns of a placed rollout nobody is asked: what is left is the way to its place."""
    text = (
        "Shares of all slot time that rollouts spend without a place though they have a sandbox; what"
        " a strategy holds back on purpose is in both. From the sandbox's begin: also the set-up of"
        " the environment and all messages. From the leader's hearing: its decision and the row.\n\n"
    )
    lines = [
        (
            run.cell,
            run.entry,
            str(run.seed),
            f"{run.generating_share:.1%}",
            f"{run.unplaced_share:.2%}",
            f"{run.decision_share:.3%}",
            str(run.decisions),
            str(run.live_max),
        )
        for run in runs
        if not run.off
    ]
    head = (
        "cell",
        "strategy",
        "seed",
        "generating",
        "from the sandbox",
        "from the hearing",
        "known",
        "live at most",
    )
    return text + grid(head, lines)


def _physics(report: Report) -> str:
    if not report.physics:
        return "No run of `venus` at low pressure yet from which costs can be fitted.\n"
    text = (
        "Costs of the engine beside nothing, times the factors by which decode steps and prompts are dearer"
        " in a strategy's run at low pressure, as the engine itself counts seconds and work: what shares"
        " the machine's cores with it."
        " With one engine nothing is moved between engines, and without outer tiers nothing leaves the"
        " device: neither link is measured here; `make bench-engine` does.\n\n"
    )
    head = (
        "seed", "strategy", "decode x", "prefill x",
        "decode step, ms", "KV token read, ns", "prefill token, us",
        "and a token that it attends to, ns", "off by (sd of log)", "turns", "trainer token, ms",
        "update, s", "sync, s",
    )  # fmt: skip
    lines = [
        (
            str(seed),
            entry,
            f"{one.scale.decode:.2f}",
            f"{one.scale.prefill:.2f}",
            f"{one.engine.step_s * 1e3:.2f}",
            f"{one.engine.kv_token_s * 1e9:.0f}",
            f"{one.engine.prefill_token_s * 1e6:.1f}",
            f"{one.engine.attended_token_s * 1e9:.1f}",
            f"{one.spread:.2f}",
            str(one.turns),
            f"{one.rates.trainer.token_s * 1e3:.3f}",
            f"{one.rates.trainer.update_s:.2f}",
            f"{one.rates.sync_s:.2f}",
        )
        for (seed, entry), one in report.physics.items()
    ]
    return text + grid(head, lines)


def write(report: Report, folder: Path) -> None:
    """Both files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "e2e.md").write_text(markdown(report))
    records = [
        {**rounded(asdict(run)), "simulated_step_s": rounded(report.simulated.get(run.key))}
        for run in report.runs
    ]
    (folder / "e2e.json").write_text(json.dumps(records, indent=1) + "\n")


def main() -> None:
    """Read, write, say which checks failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.e2e.report", description=__doc__)
    parser.add_argument("--file", type=Path, default=DEFAULT_FILE)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    report = report_of(asked.file)
    write(report, asked.folder)
    for check in all_checks(report.runs, report.table):
        print(f"{check.verdict}: {check.what}: {check.reached}, wanted {check.wanted}")


if __name__ == "__main__":
    main()
