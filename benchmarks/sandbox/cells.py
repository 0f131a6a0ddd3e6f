"""What is run: a node under one way of counting, overhead and templates, over the fixed seeds."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import median
from typing import Any, Final

from benchmarks.sandbox.fixed import fixed
from benchmarks.workloads import traces_folder
from sandboxes.core.admission import Rules
from sandboxes.core.ladder import Tools
from simulation.sandboxes.baselines import BaselineTally, declared_rule, oss_rule, run_slots
from simulation.sandboxes.demand import MB, DemandSource, TraceSource
from simulation.sandboxes.generator import fitted_demand
from simulation.sandboxes.node import NodeSetting, SimulatedNode, Tally, TaskSource
from simulation.sandboxes.tasks import ManyTemplates, OneTemplate, Pages, factors_of
from simulation.sandboxes.traces import STEMS, read_memory

OVERHEADS_MB: Final = (40, 100, 300)
CONTAINER_MB: Final = 1
"""Of a container: no guest kernel, no monitor; what a namespaced process was measured to add."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the report."""

    name: str
    is_shared: bool = False
    overhead_mb: int = 5
    is_cpu_admitted: bool = False
    has_many_templates: bool = False
    is_storm: bool = False


ADMISSION: Final = Cell("admission by use")
SHARED: Final = Cell("and half of the base shared", is_shared=True)
CPU: Final = Cell("admission by use, CPU admitted", is_cpu_admitted=True)
CPU_SHARED: Final = Cell("shared, CPU admitted", is_shared=True, is_cpu_admitted=True)
MANY: Final = Cell("many templates", has_many_templates=True)
MANY_SHARED: Final = Cell("many templates, shared", is_shared=True, has_many_templates=True)
MANY_CPU: Final = Cell(
    "many templates, shared, CPU admitted",
    is_shared=True, has_many_templates=True, is_cpu_admitted=True,
)  # fmt: skip
CONTAINERS: Final = Cell("containers", overhead_mb=CONTAINER_MB)
STORM: Final = Cell("storm", is_shared=True, is_storm=True)

OVERHEADS: Final = tuple(
    Cell(f"{mb} MB a guest{', shared' if shared else ''}", shared, mb)
    for mb in OVERHEADS_MB
    for shared in (False, True)
)

CELLS: Final = (
    ADMISSION, SHARED, CPU, CPU_SHARED, *OVERHEADS, MANY, MANY_SHARED, MANY_CPU, CONTAINERS, STORM,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell over its seeds; bytes are means of one sandbox."""

    cell: Cell
    tallies: tuple[Tally, ...]

    def median_of(self, figure: Callable[[Tally], float]) -> float:
        """Over the seeds."""
        return median(figure(one) for one in self.tallies)

    @property
    def sandboxes(self) -> float:
        """On the node at once: mean over the measured time."""
        return self.median_of(lambda one: one.sandbox_s / one.seconds)

    @property
    def used_bytes(self) -> float:
        """Of one sandbox, overhead and its part of shared pages included."""
        return self.median_of(lambda one: one.resident_byte_s / one.sandbox_s)

    @property
    def filled(self) -> float:
        """Share of the node's memory in use."""
        return self.sandboxes * self.used_bytes / fixed().node.memory_bytes

    @property
    def fullest(self) -> float:
        """The highest share in any second of any seed."""
        return max(one.resident_max for one in self.tallies) / fixed().node.memory_bytes

    @property
    def busy(self) -> float:
        """Share of the cores in use."""
        return self.median_of(lambda one: one.core_s / one.seconds) / fixed().node.cores

    @property
    def slowed(self) -> float:
        """Share of time in which more cores were wanted than there are."""
        return self.median_of(lambda one: one.slowed_s / one.seconds)

    @property
    def overflow(self) -> float:
        """Seconds above RAM for each sandbox-second, all seeds together."""
        lived = sum(one.sandbox_s_all for one in self.tallies)
        return sum(one.overflow_s for one in self.tallies) / lived

    @property
    def overflow_lived(self) -> float:
        """Share of sandbox-seconds that were lived in such seconds: the stricter measure."""
        lived = sum(one.sandbox_s_all for one in self.tallies)
        return sum(one.overflow_sandbox_s for one in self.tallies) / lived

    @property
    def binding(self) -> str:
        """The resource that ended most waves."""
        counts = sum((one.refused for one in self.tallies), Counter[str]())
        return counts.most_common(1)[0][0] if counts else "none"

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "cell": asdict(self.cell),
            "sandboxes": round(self.sandboxes, 1),
            "used_mb": round(self.used_bytes / MB, 2),
            "binding": self.binding,
            "overflow_per_sandbox_s": self.overflow,
            "overflow_sandbox_s_share": self.overflow_lived,
            "seeds": [_plain(one) for one in self.tallies],
        }


def _plain(tally: Tally) -> dict[str, Any]:
    """Counters as mappings: `asdict` makes other counters of them."""
    plain = replace(tally, refused=Counter(), rungs=Counter())
    return {**asdict(plain), "refused": dict(tally.refused), "rungs": dict(tally.rungs)}


@cache
def demand() -> tuple[DemandSource, str]:
    """Recorded sandboxes where their files are, else the generator; and which of them."""
    folder = traces_folder()
    if folder and all((folder / f"{stem}.jsonl.gz").exists() for stem in STEMS):
        return TraceSource(read_memory(folder)), "traces"
    return fitted_demand(), "fitted"


def source_of(cell: Cell) -> TaskSource:
    """The groups of a cell."""
    numbers, templates = fixed().demand, fixed().templates
    share = numbers.shared_share if cell.is_shared else 0.0
    pages = Pages(numbers.base_bytes, share, cell.overhead_mb * MB, numbers.ceiling_bytes)
    if not cell.has_many_templates:
        return OneTemplate(demand()[0], pages)
    factors = factors_of(templates.count, templates.spread, templates.seed)
    return ManyTemplates(demand()[0], pages, factors)


def run_cell(cell: Cell) -> CellRecord:
    """All seeds of a cell."""
    return CellRecord(cell, tuple(_run(cell, seed) for seed in fixed().run.seeds))


def _run(cell: Cell, seed: int) -> Tally:
    node, asked, run, storm = fixed().node, fixed().demand, fixed().run, fixed().storm
    tools = Tools(swap_free_bytes=storm.swap_bytes, disk_free_bytes=storm.disk_bytes)
    rules = Rules(packing=node.packing, is_cpu_admitted=cell.is_cpu_admitted)
    setting = NodeSetting(
        node.memory_bytes, node.cores, rules, asked.members, asked.wave_s, tools, cell.is_storm
    )
    simulated = SimulatedNode(setting, source_of(cell), seed)
    if not cell.is_storm:
        return simulated.run(run.seconds, run.measured_from_s)
    simulated.run(storm.at_s, run.measured_from_s)
    simulated.ledger.pages.other_bytes = round(storm.lost_share * node.memory_bytes)
    return simulated.run(storm.seconds - storm.at_s, run.measured_from_s)


@dataclass(frozen=True, slots=True)
class Baseline:
    """One rule of others at one declared memory."""

    name: str
    ceiling_bytes: int
    tally: BaselineTally


def baselines() -> list[Baseline]:
    """Both rules at every declared memory."""
    numbers, node, source = fixed().declared, fixed().node, demand()[0]
    found = []
    for ceiling in numbers.ceilings_bytes:
        declared = declared_rule(node.memory_bytes, ceiling, 5 * MB)
        for name, rule in (
            ("e2b-declared", declared), ("e2b-oss", oss_rule(ceiling, 5 * MB)),
        ):  # fmt: skip
            tally = run_slots(rule, source, node.memory_bytes, numbers.seconds, 1)
            found.append(Baseline(name, ceiling, tally))
    return found
