"""Arithmetic over records: what reports and gates say about a cell.

A strategy is compared by the median over seeds of seconds a step. A speed-up is another's seconds over
those of `venus`: above 1 `venus` is faster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.fixed import fixed
from benchmarks.schedule.cases import VENUS, Cell
from benchmarks.schedule.records import Record

PARITY_MIN = 0.97
"""`venus` reaches at least this share of the best strategy within the regime's a and m, in every cell."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a cell over its seeds."""

    cell: Cell
    name: str
    records: tuple[Record, ...]
    """By seed."""

    @property
    def first(self) -> Record:
        """For what is the same in all seeds."""
        return self.records[0]

    @property
    def step_s(self) -> float:
        """Median over the seeds."""
        return median(one.step_s for one in self.records)

    @property
    def worst_step_s(self) -> float:
        """Of the slowest seed."""
        return max(one.step_s for one in self.records)

    @property
    def ratio(self) -> float:
        """Median ratio to the bound of its own seed."""
        return median(one.ratio for one in self.records)

    @property
    def worst_ratio(self) -> float:
        """The highest ratio to the bound."""
        return max(one.ratio for one in self.records)

    @property
    def hit_rate(self) -> float:
        """Median over the seeds."""
        return median(one.hit_rate for one in self.records)

    @property
    def is_within(self) -> bool:
        """Whether it kept to the regime's a and m."""
        regime = fixed().regimes[self.cell.regime]
        first = self.first
        return (
            first.async_ratio <= regime.async_ratio and first.max_staleness <= regime.max_staleness
        )

    @property
    def is_other(self) -> bool:
        """Whether `venus` is compared with it: any other strategy, whoever it is."""
        return self.first.strategy != VENUS.strategy.value


Table = Mapping[Cell, Mapping[str, Row]]
"""Rows by cell and entry name."""


def table_of(records: Iterable[Record]) -> Table:
    """All rows; of a run that was done twice the later record counts."""
    found: dict[Cell, dict[str, dict[int, Record]]] = {}
    for one in records:
        found.setdefault(one.cell, {}).setdefault(one.name, {})[one.seed] = one
    regimes = list(fixed().regimes)
    cells = sorted(found, key=lambda cell: (regimes.index(cell.regime), cell.has_host_tier))
    return {
        cell: {
            name: Row(cell, name, tuple(seeds[seed] for seed in sorted(seeds)))
            for name, seeds in found[cell].items()
        }
        for cell in cells
    }


def speedup(venus: Row, other: Row) -> float | None:
    """Median over the seeds that both ran; None without one."""
    own = {one.seed: one.step_s for one in venus.records}
    pairs = [one.step_s / own[one.seed] for one in other.records if one.seed in own]
    return median(pairs) if pairs else None


def best_within(rows: Mapping[str, Row]) -> Row | None:
    """The fastest other strategy within the regime's a and m, published or tuned."""
    able = [row for row in rows.values() if row.is_other and row.is_within]
    return min(able, key=lambda row: (row.step_s, row.name), default=None)


def parity(rows: Mapping[str, Row]) -> float | None:
    """What `venus` reaches of the best one's throughput; at least 1 where it is the fastest."""
    venus, best = rows.get(VENUS.name), best_within(rows)
    return None if venus is None or best is None else speedup(venus, best)


def faults_of(table: Table) -> list[str]:
    """What must never be, in any cell: the gate of a quick run."""
    found = []
    for cell, rows in table.items():
        reached = parity(rows)
        if reached is not None and reached < PARITY_MIN:
            best = best_within(rows)
            assert best is not None
            found.append(f"{cell.title}: venus reaches {reached:.3f} of {best.name}")
        for row in rows.values():
            found += [f"{cell.title}: {row.name}: {what}" for what in _faults_of(row.records)]
    return found


def _faults_of(records: Sequence[Record]) -> list[str]:
    found = []
    for one in records:
        if one.stalest > one.max_staleness:
            found.append(f"seed {one.seed}: staleness {one.stalest} above {one.max_staleness}")
        if one.strategy == VENUS.strategy.value and one.dropped_groups:
            found.append(f"seed {one.seed}: {one.dropped_groups} groups discarded")
        if one.ratio < 1.0 and one.max_staleness <= fixed().regimes[one.regime].max_staleness:
            found.append(f"seed {one.seed}: beats its bound, ratio {one.ratio:.4f}")
    return found
