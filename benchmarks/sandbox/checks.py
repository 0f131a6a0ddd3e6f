"""What the sandbox benchmark must show, each with the figure reached. Figures of nodes are simulated.

A check without its run is `missing`, which is neither passed nor failed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from benchmarks.sandbox.cells import (
    ADMISSION,
    CELLS,
    CPU,
    CPU_SHARED,
    MANY_CPU,
    OVERHEADS,
    SHARED,
    STORM,
    Cell,
    CellRecord,
)
from benchmarks.sandbox.placement import PlacementFigures
from benchmarks.sandbox.results import Results, ceiling_of, saving_over
from benchmarks.schedule.checks import Check
from sandboxes.core.names import GIB
from simulation.sandboxes.demand import MB

SAVINGS_MIN: Final = {
    (ADMISSION, 2 * GIB): 0.85, (ADMISSION, GIB): 0.70,
    (SHARED, 2 * GIB): 0.90, (SHARED, GIB): 0.80,
}  # fmt: skip
"""CPU off, 5 MB a guest, packing 0.90, over the baseline at this declared memory."""

OVERFLOW_MAX: Final = 1e-5
PLACEMENT_US_MAX: Final = 50.0
SERVED_BYTES: Final = 2 * GIB


def all_checks(results: Results) -> list[Check]:
    """Every requirement in the order of the report."""
    return [
        *_savings(results),
        *_cpu(results),
        *_ceilings(results),
        *_overflow(results),
        _served(results),
        *_ladder(results),
        *_placement(results),
    ]


T = TypeVar("T")


def _check(
    what: str, wanted: str, record: T | None, reached: Callable[[T], tuple[str, bool]]
) -> Check:
    return Check(what, wanted, *(("", None) if record is None else reached(record)))


def _savings(results: Results) -> Iterator[Check]:
    for (cell, declared), least in SAVINGS_MIN.items():
        for name in ("e2b-declared", "e2b-oss"):
            record, other = results.cells.get(cell), results.baseline(name, declared)
            what = f"{cell.name}: saving over {name} at {declared // GIB} GiB"
            if record is None or other is None:
                yield Check(what, f"{least:.2f}", "", None)
                continue
            found = saving_over(record, other)
            ceiling = ceiling_of(record, declared)
            said = f"{found:.4f} ({record.sandboxes:.0f} for {other.tally.sandboxes:.0f}"
            said += f"; ceiling over declared {ceiling:.4f})"
            yield Check(what, f"at least {least:.2f}", said, found >= least)


def _cpu(results: Results) -> Iterator[Check]:
    """CPU admission must be off and on, and with it on the binding resource is named."""
    for cell in (CPU, CPU_SHARED, MANY_CPU):
        record = results.cells.get(cell)
        yield _check(f"{cell.name}: binding resource", "named", record, _binding)


def _binding(record: CellRecord) -> tuple[str, bool]:
    said = f"{record.binding}; {record.sandboxes:.0f} sandboxes, cores {record.busy:.2f} busy"
    return said, record.binding in ("memory", "cpu")


def _ceilings(results: Results) -> Iterator[Check]:
    """Savings of larger guests stand beside what arithmetic allows, and never above it."""
    for cell in OVERHEADS:
        record, other = results.cells.get(cell), results.baseline("e2b-declared", 2 * GIB)
        what = f"{cell.name}: saving at 2 GiB beside its ceiling"
        if record is None or other is None:
            yield Check(what, "below it", "", None)
            continue
        found, ceiling = saving_over(record, other), ceiling_of(record, 2 * GIB)
        yield Check(what, "below it", f"{found:.4f} of {ceiling:.4f}", found <= ceiling)


def _overflow(results: Results) -> Iterator[Check]:
    for cell in CELLS:
        if cell == STORM:
            continue
        record = results.cells.get(cell)
        what = f"{cell.name}: seconds above RAM for each sandbox-second"
        yield _check(what, f"at most {OVERFLOW_MAX:g}", record, _over)


def _over(record: CellRecord) -> tuple[str, bool]:
    said = f"{record.overflow:.1e}; fullest {record.fullest:.3f}"
    return said, record.overflow <= OVERFLOW_MAX


def _served(results: Results) -> Check:
    record = results.cells.get(ADMISSION)
    return _check("sandboxes above 2 GiB served", "yes", record, _largest)


def _largest(record: CellRecord) -> tuple[str, bool]:
    most = max(one.largest_served for one in record.tallies)
    return f"largest that ended by itself {most / MB:.0f} MB", most > SERVED_BYTES


def _ladder(results: Results) -> Iterator[Check]:
    record = results.cells.get(STORM)
    what = "storm: kills while a cheaper rung was left"
    yield _check(what, "0, and some kills", record, _kills)


def _kills(record: CellRecord) -> tuple[str, bool]:
    early = sum(one.early_kills for one in record.tallies)
    rungs = sum((one.rungs for one in record.tallies), Counter[str]())
    said = ", ".join(f"{name} {number}" for name, number in sorted(rungs.items()))
    return f"{early}; {said}", early == 0 and rungs["kill"] > 0


def _placement(results: Results) -> Iterator[Check]:
    figures = results.placement[0] if results.placement else None
    what = "placement p99, 100,000 sandboxes on 2,000 nodes"
    yield _check(what, f"under {PLACEMENT_US_MAX:.0f} us", figures, _fast)


def _fast(figures: PlacementFigures) -> tuple[str, bool]:
    said = f"{figures.p99_us:.1f} us, median {figures.p50_us:.1f}"
    return said, figures.p99_us < PLACEMENT_US_MAX


def cells_of(names: list[str] | None) -> list[Cell]:
    """All cells, or those whose name contains one of these words."""
    return [cell for cell in CELLS if names is None or any(name in cell.name for name in names)]
