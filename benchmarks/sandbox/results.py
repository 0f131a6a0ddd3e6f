"""Everything one run of the benchmark found, and the arithmetic over it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.sandbox.cells import Baseline, Cell, CellRecord
from benchmarks.sandbox.fixed import fixed
from benchmarks.sandbox.placement import PlacementFigures
from sandboxes.core.cost import Bill, Usage, bill, saving, saving_ceiling


@dataclass(frozen=True, slots=True)
class Results:
    """Parts that were not run are empty."""

    cells: Mapping[Cell, CellRecord]
    baselines: Sequence[Baseline]
    placement: Sequence[PlacementFigures]
    source: str
    """Of the demand: recorded traces, or fitted."""

    def baseline(self, name: str, ceiling_bytes: int) -> Baseline | None:
        """One of them."""
        wanted = (name, ceiling_bytes)
        return next((o for o in self.baselines if (o.name, o.ceiling_bytes) == wanted), None)


def saving_over(record: CellRecord, other: Baseline) -> float:
    """The share of node-hours that the same sandboxes do not take: a node costs the same for both."""
    return saving(1 / record.sandboxes, 1 / other.tally.sandboxes)


def ceiling_of(record: CellRecord, declared_bytes: int) -> float:
    """The saving of a node filled to the packing limit with no reserve at all."""
    return saving_ceiling(record.used_bytes, declared_bytes, fixed().node.packing)


def usage_of(record: CellRecord, declared_bytes: int) -> Usage:
    """What the sandboxes of a cell used in the measured time, all seeds together."""
    tallies = record.tallies
    sandbox_s = sum(one.sandbox_s for one in tallies)
    return Usage(
        vcpu_s_declared=float(fixed().declared.vcpus * sandbox_s),
        byte_s_declared=float(declared_bytes * sandbox_s),
        cpu_s=sum(one.core_s for one in tallies),
        byte_s_private=float(sum(one.private_byte_s + one.overhead_byte_s for one in tallies)),
        byte_s_mapped=float(sum(one.mapped_byte_s for one in tallies)),
        byte_s_shared=float(sum(one.shared_byte_s for one in tallies)),
    )


def bill_of(record: CellRecord, declared_bytes: int) -> Bill:
    """Dollars of the measured time by the three models, use charged for the room kept free beside it."""
    return bill(usage_of(record, declared_bytes), fixed().prices, fixed().node.packing)
