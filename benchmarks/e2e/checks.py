"""What the end-to-end benchmark must show, each with the figure reached on the real stack.

A check without its runs is `missing`, which is neither passed nor failed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.e2e.cases import COMPARED, CROWD, LOW, PRESSURE, SEEDS, published
from benchmarks.e2e.records import Run
from benchmarks.e2e.tables import Row, Table, baselines
from benchmarks.schedule.checks import Check
from domain.plan import StrategyName

TRAINERS: Final = (StrategyName.SLIME_SYNC, StrategyName.SLIME_ASYNC, StrategyName.ROLLFLASH)

SPEEDUP_MIN: Final = 2.0
"""Over the best of the trainers' own schedulers, at pressure."""

PROGRAMS_MIN: Final = 1.1
"""Over `thunderagent-paper`, at pressure."""

PARITY_MIN: Final = 0.97
"""Against everybody within a and m of the cell, in every cell; who holds more or older groups than that is
not compared with (section 3 of the benchmark's rules), its ratio stands beside."""

OFF_BY_MAX: Final = 0.15
"""Of a real ratio from the simulated one."""

PRESSURE_MIN: Final = 2.0
LOW_PRESSURE_MAX: Final = 1.0

COORDINATOR_MAX: Final = 0.01
"""Share of slot time; where no strategy holds anybody back."""

LIVE_MIN: Final = 200
"""Rollouts with a place at the same time, where that share is asked."""


def all_checks(runs: Sequence[Run], table: Table) -> list[Check]:
    """Every requirement in the order of the report."""
    return [
        _whole(runs),
        _same_work(runs),
        *_pressures(runs),
        _speedup(table),
        _programs(table),
        *_parities(table),
        *_orders(table),
        *_distances(table),
        _coordinator(runs),
    ]


def _whole(runs: Sequence[Run]) -> Check:
    what, wanted = "runs that ended whole", "all, without a failed try"
    if not runs:
        return Check(what, wanted, "-", None)
    bad = [run for run in runs if run.failed_tries or len(run.commits_s) != run.steps]
    return Check(what, wanted, f"{len(runs) - len(bad)} of {len(runs)}", not bad)


def _same_work(runs: Sequence[Run]) -> Check:
    """Strategies that drop a group do its task again, as another rollout of the same task."""
    what = "trained the same rollouts as the others of their seed (those that dropped none)"
    kept = [run for run in runs if run.cell != CROWD.name and not run.dropped_groups]
    works = {
        seed: {run.work for run in kept if run.seed == seed} for seed in {r.seed for r in kept}
    }
    if not works:
        return Check(what, "all", "-", None)
    same = sum(len(found) == 1 for found in works.values())
    return Check(what, "all seeds", f"{same} of {len(works)} seeds", same == len(works))


def _pressures(runs: Sequence[Run]) -> Iterable[Check]:
    for cell, wanted in (
        (LOW, f"at most {LOW_PRESSURE_MAX:g}"),
        (PRESSURE, f"above {PRESSURE_MIN:g}"),
    ):
        what = f"contexts in flight over device pages: {cell.name}"
        found = [run.pressure for run in runs if run.cell == cell.name]
        if not found:
            yield Check(what, wanted, "-", None)
            continue
        least, most = min(found), max(found)
        passed = most <= LOW_PRESSURE_MAX if cell is LOW else least > PRESSURE_MIN
        yield Check(what, wanted, f"{least:.2f} to {most:.2f}", passed)


def _rows(table: Table, cell: str, strategies: Sequence[StrategyName]) -> list[Row] | None:
    """Rows of all these as published, over all seeds; None while one is missing."""
    known = {row.entry: row for row in baselines(table.get(cell, ()))}
    names = [published(one).name for one in strategies]
    rows = [known[name] for name in names if name in known]
    is_whole = len(rows) == len(names) and all(len(row.runs) >= len(SEEDS) for row in rows)
    return rows if is_whole else None


def _speedup(table: Table) -> Check:
    what = "speed-up over the best of slime-sync, slime-async, rollflash: pressure"
    return _least(what, SPEEDUP_MIN, _rows(table, PRESSURE.name, TRAINERS))


def _programs(table: Table) -> Check:
    what = "speed-up over thunderagent-paper: pressure"
    rows = _rows(table, PRESSURE.name, (StrategyName.THUNDERAGENT_PAPER,))
    return _least(what, PROGRAMS_MIN, rows)


def _parities(table: Table) -> Iterable[Check]:
    for cell in COMPARED:
        rows = _rows(table, cell.name, (*TRAINERS, StrategyName.THUNDERAGENT_PAPER))
        what = f"against the best within a and m: {cell.name}"
        if rows is None:
            yield _least(what, PARITY_MIN, None)
            continue
        every = baselines(table[cell.name])
        check = _least(what, PARITY_MIN, [row for row in every if row.is_within])
        beyond = min((row for row in every if not row.is_within), key=_real, default=None)
        beside = f"; beyond them {beyond.ratio.text()} of {beyond.entry}" if beyond else ""
        yield replace(check, reached=check.reached + beside)


def _least(what: str, limit: float, rows: Sequence[Row] | None) -> Check:
    wanted = f"at least {limit:.2f}"
    if rows is None:
        return Check(what, wanted, "-", None)
    best = min(rows, key=_real)
    reached = f"{best.ratio.text()} of {best.entry}"
    return Check(what, wanted, reached, best.ratio.median >= limit)


def _compared(table: Table, cell: str) -> list[Row]:
    return [row for row in baselines(table.get(cell, ())) if row.simulated is not None]


def _orders(table: Table) -> Iterable[Check]:
    for cell in COMPARED:
        what, wanted = f"order of strategies, real and simulated: {cell.name}", "equal"
        rows = _compared(table, cell.name)
        if len(rows) < 2:
            yield Check(what, wanted, "-", None)
            continue
        real = [row.entry for row in sorted(rows, key=_real)]
        modelled = [row.entry for row in sorted(rows, key=_modelled)]
        reached = "equal" if real == modelled else f"{' < '.join(real)}; {' < '.join(modelled)}"
        yield Check(what, wanted, reached, real == modelled)


def _real(row: Row) -> float:
    return row.ratio.median


def _modelled(row: Row) -> float:
    assert row.simulated is not None
    return row.simulated.median


def _distances(table: Table) -> Iterable[Check]:
    for cell in COMPARED:
        what, wanted = f"real ratios off the simulated: {cell.name}", f"at most {OFF_BY_MAX:.0%}"
        found = [(abs(row.off_by or 0.0), row) for row in _compared(table, cell.name)]
        if not found:
            yield Check(what, wanted, "-", None)
            continue
        off_by, row = max(found, key=lambda pair: pair[0])
        yield Check(what, wanted, f"{off_by:.0%} at {row.entry}", off_by <= OFF_BY_MAX)


def _coordinator(runs: Sequence[Run]) -> Check:
    what = "slot time of rollouts that wait for the coordinator's decision: crowd"
    wanted = f"at most {COORDINATOR_MAX:.0%} at {LIVE_MIN} live rollouts"
    found = [run for run in runs if run.cell == CROWD.name and run.decisions]
    if not found:
        return Check(what, wanted, "-", None)
    worst = max(run.decision_share for run in found)
    live = min(run.live_max for run in found)
    reached = f"{worst:.2%} at {live}"
    return Check(what, wanted, reached, worst <= COORDINATOR_MAX and live >= LIVE_MIN)
