"""Runs side by side: ratios to `venus` of the same block (cell and seed), with their spread. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.e2e.records import Run
from benchmarks.engine.figures import Spread, ratios, spread
from benchmarks.schedule.cases import VENUS

Simulated = Mapping[str, float]
"""Simulated seconds of a step, by the key of the run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry in one cell, over the seeds that both it and `venus` ran."""

    cell: str
    entry: str
    strategy: str
    is_within: bool
    runs: Sequence[Run]
    venus: Sequence[Run]
    simulated: Spread | None
    """Simulated ratio to simulated `venus`."""

    @property
    def step_s(self) -> Spread:
        """Real seconds of a step."""
        return spread([run.step_s for run in self.runs])

    @property
    def ratio(self) -> Spread:
        """How many times as fast `venus` was, by the wall clock."""
        return ratios([run.step_s for run in self.runs], [run.step_s for run in self.venus])

    @property
    def later_ratio(self) -> Spread:
        """The same over the steps after the first."""
        return ratios(
            [run.later_step_s for run in self.runs], [run.later_step_s for run in self.venus]
        )

    @property
    def off_by(self) -> float | None:
        """The real ratio over the simulated one, less one."""
        return None if self.simulated is None else self.ratio.median / self.simulated.median - 1.0


Table = Mapping[str, Sequence[Row]]
"""Rows by cell: strategies, then ablation, in the order in which they were first run."""


def table_of(runs: Iterable[Run], simulated: Simulated) -> Table:
    """All rows; a run without a `venus` in its block is in none."""
    by_block: dict[tuple[str, int], dict[str, Run]] = {}
    for run in runs:
        by_block.setdefault((run.cell, run.seed), {})[run.entry] = run
    pairs: dict[tuple[str, str], list[tuple[Run, Run]]] = {}
    for (cell, _), block in sorted(by_block.items()):
        if VENUS.name in block:
            for name, run in sorted(block.items()):
                pairs.setdefault((cell, name), []).append((run, block[VENUS.name]))
    table: dict[str, list[Row]] = {}
    for (cell, _), found in pairs.items():
        table.setdefault(cell, []).append(_row(found, simulated))
    return {cell: sorted(rows, key=_place) for cell, rows in table.items()}


def _place(row: Row) -> tuple[bool, bool, str]:
    is_ablated = bool(row.runs[0].off)
    return is_ablated, row.entry != VENUS.name, row.entry


def _row(pairs: Sequence[tuple[Run, Run]], simulated: Simulated) -> Row:
    first = pairs[0][0]
    both = [
        simulated[run.key] / simulated[venus.key]
        for run, venus in pairs
        if run.key in simulated and venus.key in simulated
    ]
    return Row(
        cell=first.cell,
        entry=first.entry,
        strategy=first.strategy,
        is_within=first.is_within,
        runs=[run for run, _ in pairs],
        venus=[venus for _, venus in pairs],
        simulated=spread(both) if len(both) == len(pairs) else None,
    )


def baselines(rows: Sequence[Row]) -> list[Row]:
    """Rows of other strategies."""
    return [row for row in rows if row.entry != VENUS.name and not row.runs[0].off]
