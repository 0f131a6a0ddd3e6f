"""What the scheduling benchmark must show, each with the figure reached. All figures are simulated.

A check without its runs is `missing`, which is neither passed nor failed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from benchmarks.fixed import fixed
from benchmarks.schedule.cases import ABLATED, ENDLESS, ORACLES, TUNED, UNPREDICTED, VENUS, Cell
from benchmarks.schedule.tables import PARITY_MIN, Row, Table, best_within, parity, speedup
from domain.plan import StrategyName

RATIOS_MAX: Final = {
    Cell("mid-light", False): 1.10, Cell("mid-light", True): 1.10,
    Cell("mid", False): 1.30, Cell("high", False): 1.30,
    Cell("mid", True): 1.18, Cell("high", True): 1.18,
    Cell("mid-heavy", False): 2.3, Cell("mid-heavy", True): 1.85,
    Cell("low", False): 1.75, Cell("low", True): 1.75,
}  # fmt: skip
"""Ratio of `venus` to the bound, median of the seeds."""

SPEEDUPS_MIN: Final = {StrategyName.SLIME_SYNC: 2.6, StrategyName.ROLLFLASH: 3.6}
"""Of `venus` at `high` without host tier over the baseline as published."""

PROGRAMS_SPEEDUP_MIN: Final = 1.12
"""Over the better `thunderagent`, at `mid` and `high` without host tier."""

STALENESS_MAX: Final = 2
UNPREDICTED_MIN: Final = 0.98
"""Share of the oracle's throughput that `venus` keeps without its predictor."""

BOUNDED_MAX: Final = 1.02
"""Seconds a step beside a run without bound on staleness."""


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement; `passed` None: its runs are missing."""

    what: str
    wanted: str
    reached: str
    passed: bool | None

    @property
    def verdict(self) -> str:
        """As a word."""
        return {None: "missing", True: "pass", False: "FAIL"}[self.passed]


def all_checks(table: Table) -> list[Check]:
    """Every requirement in the order of the report."""
    return [
        *_ratios(table),
        *_parities(table),
        *_speedups(table),
        *_programs(table),
        _staleness(table),
        _discards(table),
        *_unpredicted(table),
        *_bounded(table),
    ]


def _missing(what: str, wanted: str) -> Check:
    return Check(what, wanted, "-", None)


def _ratios(table: Table) -> Iterable[Check]:
    for cell, limit in RATIOS_MAX.items():
        what, wanted = f"ratio to the bound: {cell.title}", f"at most {limit:.2f}"
        row = table.get(cell, {}).get(VENUS.name)
        if row is None:
            yield _missing(what, wanted)
        else:
            said = f"{row.ratio:.3f}, median of {len(row.records)} seeds"
            yield Check(what, wanted, said, row.ratio <= limit)


def _parities(table: Table) -> Iterable[Check]:
    for regime, tier in product(fixed().full.regimes, (False, True)):
        cell = Cell(regime, tier)
        rows = table.get(cell, {})
        what, wanted = f"against the best within a and m: {cell.title}", f"at least {PARITY_MIN}"
        reached, best = parity(rows), best_within(rows)
        if reached is None or best is None:
            yield _missing(what, wanted)
        else:
            yield Check(what, wanted, f"{reached:.3f} of {best.name}", reached >= PARITY_MIN)


def published(rows: Mapping[str, Row], strategy: StrategyName) -> Row | None:
    """A baseline as published: under its own bounds where it brings some."""
    return rows.get(f"{strategy.value} published")


def _speedups(table: Table) -> Iterable[Check]:
    rows = table.get(Cell("high", False), {})
    for strategy, wanted in SPEEDUPS_MIN.items():
        what = f"speed-up over {strategy.value} as published: high, host tier off"
        row = published(rows, strategy)
        yield _faster(what, rows, row, wanted, _tuned_beside(rows, strategy))


def _tuned_beside(rows: Mapping[str, Row], strategy: StrategyName) -> str:
    """The better of what is within a and m, with the most that any scheduler could gain on it."""
    venus = rows.get(VENUS.name)
    found = [row for row in rows.values() if row.first.strategy == strategy.value and row.is_within]
    best = min(found, key=lambda row: row.step_s, default=None)
    faster = None if venus is None or best is None else speedup(venus, best)
    if best is None or faster is None:
        return ""
    return f"; best within a and m ({best.name}): {faster:.2f}, ceiling {best.ratio:.2f}"


def _programs(table: Table) -> Iterable[Check]:
    names = (StrategyName.THUNDERAGENT_PAPER, StrategyName.THUNDERAGENT_UPSTREAM)
    for regime in ("mid", "high"):
        cell = Cell(regime, False)
        rows = table.get(cell, {})
        what = f"speed-up over the better thunderagent: {cell.title}"
        able = [
            row
            for row in rows.values()
            if row.first.strategy in {one.value for one in names} and row.is_within
        ]
        best = min(able, key=lambda row: (row.step_s, row.name), default=None)
        beside = f" ({best.name})" if best else ""
        venus = rows.get(VENUS.name)
        plain = [row for row in able if row.first.variant != TUNED]
        usual = min(plain, key=lambda row: (row.step_s, row.name), default=None)
        faster = None if venus is None or usual is None else speedup(venus, usual)
        if faster is not None and usual is not best:
            beside += f"; as published {faster:.2f}"
        yield _faster(what, rows, best, PROGRAMS_SPEEDUP_MIN, beside)


def _faster(
    what: str, rows: Mapping[str, Row], other: Row | None, wanted: float, beside: str
) -> Check:
    venus = rows.get(VENUS.name)
    reached = None if venus is None or other is None else speedup(venus, other)
    if reached is None:
        return _missing(what, f"at least {wanted}")
    return Check(what, f"at least {wanted}", f"{reached:.2f}{beside}", reached >= wanted)


def _over_venus(table: Table, what: str, wanted: str, count: Callable[[Row], int]) -> Check:
    """The largest of a number over all cells, which must not exceed what is allowed."""
    rows = [rows[VENUS.name] for rows in table.values() if VENUS.name in rows]
    if not rows:
        return _missing(what, wanted)
    worst = max(rows, key=count)
    limit = STALENESS_MAX if what.startswith("staleness") else 0
    said = f"{count(worst)} ({worst.cell.title})" if count(worst) else "0"
    return Check(what, wanted, f"{said}, {len(rows)} cells", count(worst) <= limit)


def _staleness(table: Table) -> Check:
    return _over_venus(
        table,
        "staleness of every batch of venus",
        f"at most {STALENESS_MAX}",
        lambda row: max(one.stalest for one in row.records),
    )


def _discards(table: Table) -> Check:
    return _over_venus(
        table,
        "groups that venus discards",
        "none",
        lambda row: sum(one.dropped_groups for one in row.records),
    )


def _unpredicted(table: Table) -> Iterable[Check]:
    for cell, rows in table.items():
        if cell.regime not in ABLATED:
            continue
        what = f"predictor off, throughput beside the oracle's: {cell.title}"
        wanted = f"at least {UNPREDICTED_MIN}"
        reached = _beside(rows.get(UNPREDICTED.name), [rows.get(one.name) for one in ORACLES])
        if reached is None:
            yield _missing(what, wanted)
        else:
            yield Check(what, wanted, f"{reached:.3f}", reached >= UNPREDICTED_MIN)


def _beside(row: Row | None, others: Sequence[Row | None]) -> float | None:
    """Throughput of a row over that of the fastest of the others; None while any is missing."""
    if row is None:
        return None
    found = [None if other is None else speedup(row, other) for other in others]
    known = [one for one in found if one is not None]
    return min(known) if len(known) == len(found) else None


def _bounded(table: Table) -> Iterable[Check]:
    for cell, rows in table.items():
        if cell.regime not in ABLATED:
            continue
        what = f"seconds a step beside unbounded staleness: {cell.title}"
        venus, endless = rows.get(VENUS.name), rows.get(ENDLESS.name)
        reached = None if venus is None or endless is None else speedup(endless, venus)
        if reached is None:
            yield _missing(what, f"at most {BOUNDED_MAX}")
        else:
            wanted = f"at most {BOUNDED_MAX}"
            yield Check(what, wanted, f"{reached:.3f}", reached <= BOUNDED_MAX)
