"""What is run: a cell (how many pages an engine has), an entry (a strategy, a switch off), a seed.

The two cells in which strategies are compared differ in nothing but the pages of an engine, so they train
the same groups. Strategies run as published: with their own bounds where they bring some, else with the
cell's a and m. A third cell has many rollouts, for what the coordinator costs them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchmarks.schedule.cases import OWN_BOUNDS, PUBLISHED, VENUS, Bounds, Entry, ablation_entries
from domain.plan import StrategyName

ENVIRONMENT: Final = "delays"

ASYNC_RATIO: Final = 1.5
MAX_STALENESS: Final = 2
"""a and m of the cells, those of most regimes of the scheduling benchmark."""

RATIO_MAX: Final = 16.0
STALENESS_MAX: Final = 64
"""The most that a spec takes; `slime-async` asks for the second, as a job that knows no bound has to."""

LEARNING_RATE: Final = 1e-12
"""Below what a sampler of float32 can tell apart: weights change at each step, answers never."""

BASELINES: Final = (
    StrategyName.SLIME_SYNC,
    StrategyName.SLIME_ASYNC,
    StrategyName.ROLLFLASH,
    StrategyName.THUNDERAGENT_PAPER,
)

NODE_MEMORY_BYTES: Final = 64 << 30
"""What the node is told to have."""

SCALED: Final = "scaled"

KNOBS_SCALED: Final = {
    StrategyName.SLIME_ASYNC: (("poll_s", 0.1),),
    StrategyName.THUNDERAGENT_PAPER: (
        ("interval_s", 0.5),
        ("poll_s", 0.1),
        ("timeout_s", 180.0),
    ),
}
"""Published intervals are for engines of billions of parameters, where a turn takes ten times as long as
here. So these run once more with theirs cut to a tenth: nobody is to be slow by the unit of a number."""

QUICK_BASELINES: Final = (StrategyName.SLIME_SYNC, StrategyName.ROLLFLASH)


@dataclass(frozen=True, slots=True)
class Cell:
    """Sizes of one installation and its jobs. The host tier is off for everybody."""

    name: str
    kv_pages: int
    """Of one engine."""
    engines: int = 1
    """Embedded engines share the machine's cores with each other and with the trainer: on two cores one
    engine and one trainer have a core each, as separate hosts would."""
    slots: int = 32
    """More than rollouts may be in flight within a and m, so that pages are what is scarce."""
    group_size: int = 4
    groups_per_batch: int = 4
    context_tokens: int = 8192

    @property
    def groups_open_max(self) -> int:
        """Groups that a lets be unfinished at once."""
        return math.ceil(ASYNC_RATIO * self.groups_per_batch)

    @property
    def environ(self) -> dict[str, str]:
        """Settings of the installation; without others outer tiers have no pages."""
        return {
            "VENUS_KV_PAGES": str(self.kv_pages),
            "VENUS_ENGINE_SLOTS": str(self.slots),
            "VENUS_CONTEXT_TOKENS": str(self.context_tokens),
            "VENUS_POOL_ENGINES": str(self.engines),
            # 204 sandboxes of a few MB at once: a small machine's node would hold some of them back
            # until it has seen how little they take, and that is not what is measured.
            "VENUS_NODE_MEMORY_BYTES": str(NODE_MEMORY_BYTES),
            # Proofs of the tests, not of what a user runs.
            "VENUS_CHECK_INVARIANTS": "0",
            # A baseline may keep turns waiting for minutes; that is what is measured.
            "VENUS_PROGRESS_DECODE_S": "60",
            "VENUS_PROGRESS_SYNC_S": "120",
        }


PRESSURE: Final = Cell("pressure", kv_pages=780)
"""24 rollouts at their mean contexts want about 1,950 pages: two and a half times what there is."""

LOW: Final = Cell("low", kv_pages=6144)
"""Pages for all that a and m let be in flight; also where the engine's physics are measured."""

CROWD: Final = Cell("crowd", kv_pages=24_576, slots=208, groups_per_batch=34)
"""204 rollouts live at once on one engine, nothing scarce but the coordinator: `venus` alone runs here."""

COMPARED: Final = (LOW, PRESSURE)
"""Low first: the simulated side of both is made from it."""

CELLS: Final = (*COMPARED, CROWD)

SEEDS: Final = (1, 2, 3)
STEPS: Final = 8
QUICK_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    cell: Cell
    entry: Entry
    seed: int
    steps: int

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.cell.name}, {self.entry.name}, seed {self.seed}"

    @property
    def parts(self) -> str:
        """All that makes this run another one."""
        return repr((asdict(self.cell), self.entry.name, self.entry.knobs, self.seed, self.steps))


def published(strategy: StrategyName) -> Entry:
    """A baseline by its defaults and under its own bounds."""
    return Entry(strategy, PUBLISHED, bounds=OWN_BOUNDS.get(strategy))


def scaled(strategy: StrategyName) -> Entry:
    """The same with its intervals cut to the time scale of these engines."""
    return replace(published(strategy), variant=SCALED, knobs=KNOBS_SCALED[strategy])


def entries_of(cell: Cell) -> list[Entry]:
    """`venus`, the baselines, and at pressure `venus` with one mechanism off at a time."""
    if cell.name == CROWD.name:
        return [VENUS]
    entries = [VENUS, *map(published, BASELINES), *map(scaled, KNOBS_SCALED)]
    return entries + (ablation_entries() if cell.name == PRESSURE.name else [])


def bounds_of(entry: Entry, steps: int) -> tuple[float, int]:
    """a and m of a run; what is infinite becomes all that a run has, or that a spec takes."""
    own = entry.bounds or Bounds(ASYNC_RATIO, MAX_STALENESS)
    return float(min(own.async_ratio, steps, RATIO_MAX)), int(min(own.max_staleness, STALENESS_MAX))


def is_within(entry: Entry) -> bool:
    """Whether a run keeps to the cell's a and m."""
    own = entry.bounds
    return own is None or (own.async_ratio <= ASYNC_RATIO and own.max_staleness <= MAX_STALENESS)


def rotated(entries: Sequence[Entry], seed: int) -> list[Entry]:
    """Another one first for each seed: a machine that drifts within a block favours nobody."""
    first = seed % max(len(entries), 1)
    return [*entries[first:], *entries[:first]]


def all_cases(cells: Sequence[Cell], seeds: Sequence[int], steps: int) -> list[Case]:
    """Blocks of one seed and cell; what is compared with each other runs side by side.

    In a block the strategies come before ablation.
    """
    return [
        Case(cell, entry, seed, steps)
        for seed in seeds
        for cell in cells
        for is_ablated in (False, True)
        for entry in rotated([one for one in entries_of(cell) if bool(one.off) == is_ablated], seed)
    ]


def quick_cases() -> list[Case]:
    """One cell, one seed, `venus` and two baselines, a few steps."""
    entries = [VENUS, *map(published, QUICK_BASELINES)]
    return [Case(PRESSURE, entry, SEEDS[0], QUICK_STEPS) for entry in entries]


def spec_of(case: Case, model: str) -> Mapping[str, Any]:
    """The job's spec; `model` is what `model.base` names."""
    cell, entry = case.cell, case.entry
    async_ratio, max_staleness = bounds_of(entry, case.steps)
    return {
        "name": f"{cell.name}-{entry.strategy.value}-{case.seed}",
        "seed": case.seed,
        "model": {"base": model, "context_tokens": cell.context_tokens},
        "environments": [{"ref": ENVIRONMENT, "config": {"seed": case.seed}}],
        "rollout": {
            "group_size": cell.group_size,
            "groups_per_batch": cell.groups_per_batch,
            "sampling": {"temperature": 1.0, "max_tokens_per_turn": 1024},
        },
        "scheduling": {
            "strategy": entry.strategy.value,
            "off": [one.value for one in entry.off],
            "knobs": dict(entry.knobs),
            "async_ratio": async_ratio,
            "max_staleness": max_staleness,
        },
        "optimizer": {"lr": LEARNING_RATE},
        "algorithm": {"on_no_signal": "skip"},
        "evaluation": None,
        "checkpoints": {"every_steps": 1000},
        "resources": {"rollout_gpus": {"min": cell.engines, "max": cell.engines}},
        "stop": {"max_steps": case.steps},
    }


def with_engines(cell: Cell, engines: int) -> Cell:
    """The same on more engines of as many pages in all."""
    return replace(cell, engines=engines, kv_pages=cell.kv_pages // engines)
