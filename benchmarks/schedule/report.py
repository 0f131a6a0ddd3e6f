"""The readable report: `python -m benchmarks.schedule.report out/schedule.jsonl`.

Writes `schedule.md`, `schedule.json` (every record) and plots into `docs/benchmarks/`. Records of one
code and one set of fixed numbers are reported, those of the last record; others are left out and counted.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.markdown import checks_section, grid
from benchmarks.schedule.cases import (
    ABLATED,
    QUALITIES,
    RANDOM,
    VENUS,
    Cell,
    ablation_entries,
    quality_entries,
)
from benchmarks.schedule.cells import DEFAULT_FILE
from benchmarks.schedule.checks import all_checks
from benchmarks.schedule.plots import Bars, bars, lines
from benchmarks.schedule.records import ROOT, Record, read_lines, rounded
from benchmarks.schedule.tables import Row, Table, speedup, table_of

FOLDER: Final = ROOT / "docs" / "benchmarks"

NOT_IN_TABLES: Final = ("without", "predictor")
"""Words of entries that have a table of their own."""

BARS_MAX: Final = 6.0
"""Longest bar of a plot; slower strategies are cut and their ratio is written."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is written."""

    records: Sequence[Record]
    left_out: int
    table: Table


def report_of(records: Iterable[Record]) -> Report:
    """What of a file belongs together."""
    every = list(records)
    assert every, "no record: run benchmarks.schedule.cells first"
    last = every[-1]
    chosen = [
        one
        for one in every
        if (one.fixed, one.code, one.batches) == (last.fixed, last.code, last.batches)
    ]
    return Report(chosen, len(every) - len(chosen), table_of(chosen))


def markdown(report: Report) -> str:
    """The whole page."""
    parts = [
        _head(report),
        "## What it must show\n\n" + checks_section(all_checks(report.table), "reached, simulated"),
        "## What the order is worth\n\n" + _order(report.table),
        "## Cells\n\n" + _legend(),
        *(_cell(cell, rows) for cell, rows in report.table.items()),
        "## One mechanism off at a time\n\n" + _ablation(report.table),
        "## Quality of the predictor\n\n" + _quality(report.table),
        "## Plots\n\n" + "".join(f"![{name}]({name}.svg)\n\n" for name in plots(report)),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _head(report: Report) -> str:
    last = report.records[-1]
    sources = sorted({one.source for one in report.records})
    seeds = sorted({one.seed for one in report.records})
    cpu_h = sum(one.cpu_s for one in report.records) / 3600
    commits = Counter(one.commit for one in report.records)
    return "\n".join(
        [
            "# Scheduling benchmark",
            "",
            (
                "All figures are simulated: modelled engines in virtual time, the real scheduling core. "
                "`docs/benchmarks.md` says what is fixed and how to read this page."
            ),
            "",
            f"- commit {', '.join(commits)}; fixed numbers sha256 `{last.fixed}`; code `{last.code[:16]}`",
            f"- base trajectories: {', '.join(sources)}",
            (
                f"- {last.batches} batches, seeds {', '.join(map(str, seeds))}, {len(report.records)} runs, "
                f"{len(report.table)} cells, {cpu_h:.1f} hours of CPU"
            ),
            f"- records of other code or numbers in the file, left out: {report.left_out}",
        ]
    )


def _order(table: Table) -> str:
    """`venus` beside its own mechanisms in a drawn order."""
    found = {
        cell: speedup(rows[VENUS.name], rows[RANDOM.name])
        for cell, rows in table.items()
        if VENUS.name in rows and RANDOM.name in rows
    }
    known = sorted((worth, cell.title) for cell, worth in found.items() if worth is not None)
    if not known:
        return "`random` was not run.\n"
    (least, worst), (most, best) = known[0], known[-1]
    return (
        f"`random` has every mechanism of `venus` and draws the order of groups. `venus` is "
        f"{median(worth for worth, _ in known):.3f} times as fast, median of {len(known)} cells; least "
        f"{least:.3f} ({worst}), most {most:.3f} ({best}); in {sum(worth < 1 for worth, _ in known)} "
        f"cells `random` is faster.\n"
    )


def _legend() -> str:
    return (
        "Seconds a step are the makespan over batches: median and worst of the seeds. `/ bound` is the "
        "median ratio to perfect packing: no scheduler can gain more than that on it. The second bound "
        "of a cell is what its unfinished groups allow: no scheduler is faster than that either, with "
        "however many engines. `venus x`: how many times as fast `venus` is. Wait: mean seconds from "
        "opening to completion, groups whose longest member is in the shortest and the longest quarter. "
        "Wasted: sampled and given up; recomputed: prefilled again; both in million tokens. **Beyond** "
        "in the last column: holds more or older groups than the regime allows and is not compared with."
        "\n"
    )


_HEAD: Final = (
    "strategy", "tier", "a, m", "s / step", "worst", "/ bound", "venus x", "hit", "staleness",
    "dropped", "wasted", "recomputed", "wait short, long", "active", "busy", "moves", "",
)  # fmt: skip


def _cell(cell: Cell, rows: Mapping[str, Row]) -> str:
    shown = [row for row in rows.values() if not any(word in row.name for word in NOT_IN_TABLES)]
    shown += [row for name, row in rows.items() if name.startswith("oracle")]
    shown.sort(key=lambda row: (not row.is_within, row.step_s, row.name))
    if not shown:
        return f"### {cell.title}\n"
    seeds = max(len(row.records) for row in shown)
    bounds = _bounds(rows.get(VENUS.name) or shown[0])
    text = f"### {cell.title}\n\n{bounds}Up to {seeds} seeds, simulated.\n\n"
    return text + grid(_HEAD, (_row(row, rows.get(VENUS.name)) for row in shown))


def _bounds(row: Row) -> str:
    """What no schedule beats: packing, and the line of unfinished groups, each over the seeds."""
    packing = ", ".join(f"{one.bound_s:.0f}" for one in row.records)
    line = ", ".join(f"{one.line_s:.0f}" for one in row.records)
    return (
        f"Bound by seed: {packing} s a step; every rollout alone on an engine, a = "
        f"{row.first.async_ratio:g}: {line} s. "
    )


def _row(row: Row, venus: Row | None) -> tuple[str, ...]:
    records = row.records
    faster = None if venus is None or row is venus else speedup(venus, row)
    stale: Counter[int] = Counter()
    for one in records:
        stale.update({int(lag): number for lag, number in one.staleness.items()})
    first = row.first

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(records)

    return (
        row.name,
        "on" if row.cell.has_host_tier else "off",
        f"{first.async_ratio:g}, {first.max_staleness}",
        f"{row.step_s:.0f}",
        f"{row.worst_step_s:.0f}",
        f"{row.ratio:.3f}",
        "" if faster is None else f"{faster:.2f}",
        f"{row.hit_rate:.3f}",
        " ".join(f"{lag}:{number}" for lag, number in sorted(stale.items())),
        f"{mean(one.dropped_groups for one in records):.0f}",
        f"{mean(one.wasted_tokens for one in records) / 1e6:.1f}",
        f"{mean(one.recomputed_tokens for one in records) / 1e6:.0f}",
        (
            f"{mean(one.wait_s.shortest for one in records):.0f}, "
            f"{mean(one.wait_s.fourth for one in records):.0f}"
        ),
        f"{mean(one.active_batch for one in records):.1f}",
        f"{mean(one.busy_share for one in records):.2f}",
        f"{mean(one.moves for one in records):.0f}",
        "" if row.is_within else "beyond",
    )


def _ablated_cells(table: Table) -> list[Cell]:
    return [cell for cell in table if cell.regime in ABLATED and VENUS.name in table[cell]]


def _slower(table: Table, cell: Cell, name: str) -> float | None:
    """Seconds a step beside those of `venus` as it is."""
    row = table[cell].get(name)
    return None if row is None else speedup(table[cell][VENUS.name], row)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _ablation(table: Table) -> str:
    cells = _ablated_cells(table)
    rows = [
        (entry.off[0].value, *(_number(_slower(table, cell, entry.name)) for cell in cells))
        for entry in ablation_entries()
    ]
    said = "Seconds a step beside those of `venus` with everything on; above 1 the mechanism helps.\n\n"
    return said + grid(("without", *(cell.title for cell in cells)), rows)


def _quality(table: Table) -> str:
    cells = _ablated_cells(table)
    rows = [
        (f"{quality:g}", *(_number(_slower(table, cell, entry.name)) for cell in cells))
        for quality, entry in zip(QUALITIES, quality_entries(), strict=True)
    ]
    said = (
        "`venus` told the remaining work of each rollout by a predictor of this rank correlation "
        "(Spearman): seconds a step beside those of `venus` with its own history.\n\n"
    )
    return said + grid(("Spearman", *(cell.title for cell in cells)), rows)


def plots(report: Report) -> dict[str, str]:
    """Pictures by name."""
    found = {}
    for tier in (False, True):
        cells = [cell for cell in report.table if cell.has_host_tier is tier]
        if cells:
            word = "on" if tier else "off"
            found[f"ratios-tier-{word}"] = _ratio_bars(report.table, cells, word)
    cells = _ablated_cells(report.table)
    names = [entry.name for entry in quality_entries()]
    if any(name in report.table[cell] for cell in cells for name in names):
        series = {
            cell.title: [_slower(report.table, cell, name) for name in names] for cell in cells
        }
        title = "Seconds a step beside venus' own history, by Spearman of a predictor; simulated"
        found["predictor"] = lines(title, QUALITIES, series)
    return found


def _ratio_bars(table: Table, cells: Sequence[Cell], word: str) -> str:
    """`venus` and, of each baseline, the better of what is within a and m."""
    order = [VENUS.strategy.value]
    for cell in cells:
        for row in table[cell].values():
            if row.is_other and row.first.strategy not in order:
                order.append(row.first.strategy)
    groups = [(cell.regime, [_best_ratio(table[cell], name) for name in order]) for cell in cells]
    title = f"Ratio to the perfect-packing bound, host tier {word}, median of seeds; simulated"
    return bars(Bars(title, groups, order, BARS_MAX))


def _best_ratio(rows: Mapping[str, Row], strategy: str) -> float | None:
    if strategy == VENUS.strategy.value:
        return rows[VENUS.name].ratio if VENUS.name in rows else None
    able = [row for row in rows.values() if row.first.strategy == strategy and row.is_within]
    return min((row.ratio for row in able), default=None)


def write(report: Report, folder: Path) -> None:
    """All files of the report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedule.md").write_text(markdown(report))
    (folder / "schedule.json").write_text(as_json(report))
    for name, picture in plots(report).items():
        (folder / f"{name}.svg").write_text(picture)


def as_json(report: Report) -> str:
    """Every record, one a line; what all share stands once."""
    last = report.records[-1]
    shared = {"fixed": last.fixed, "code": last.code, "batches": last.batches, "simulated": True}
    without = {*shared, "key"}
    rows = [
        json.dumps(
            {name: value for name, value in rounded(asdict(one)).items() if name not in without},
            separators=(",", ":"),
        )
        for one in report.records
    ]
    head = json.dumps(shared)[:-1]
    return head + ', "records": [\n' + ",\n".join(rows) + "\n]}\n"


def main() -> None:
    """Write the report of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=DEFAULT_FILE)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    report = report_of(read_lines(asked.file))
    write(report, asked.folder)
    for check in all_checks(report.table):
        print(f"{check.verdict:7} {check.what}: {check.reached} (wanted {check.wanted})")


if __name__ == "__main__":
    main()
