"""What is run: a cell (regime, host tier), an entry (strategy, variant, knobs, a, m), a seed.

Three variants of a baseline. `published`: its defaults, under its own bounds where it brings some.
`within`: the same where those exceed the regime's a and m, which then bind it. `tuned`: its own knobs
by the committed sweep, within the regime's a and m. A run that holds more groups or older ones than the
regime allows is printed apart.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.fixed import Regime
from domain.plan import Mechanism, Order, Scheduling, StrategyName

TUNED_FILE: Final = Path(__file__).with_name("tuned.json")

PUBLISHED, WITHIN, TUNED = "published", "within", "tuned"
NORMAL, UNBOUNDED = "normal", "unbounded"

QUALITIES: Final = (0.0, 0.5, 0.7, 0.9, 0.98, 1.0)
"""Rank correlations of the predictor sweep."""

ABLATED: Final = ("mid", "high")
"""Regimes in which each mechanism is switched off in turn and the predictor is swept."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A regime with the host tier off or on, for everybody."""

    regime: str
    has_host_tier: bool

    @property
    def title(self) -> str:
        """The tier is stated wherever the cell is named."""
        return f"{self.regime}, host tier {'on' if self.has_host_tier else 'off'}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits the groups of a run: a and m; infinite where a system has no such bound."""

    async_ratio: float
    max_staleness: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A strategy as it is run. `bounds` None: the regime's."""

    strategy: StrategyName
    variant: str
    knobs: tuple[tuple[str, float], ...] = ()
    off: tuple[Mechanism, ...] = ()
    bounds: Bounds | None = None
    quality: float | None = None
    """Rank correlation of the estimates that the core is given; None: it is given none."""
    order: Order = Order.OLDEST

    @property
    def name(self) -> str:
        """Unique among the entries of a cell."""
        switches = "".join(f" without {one.value}" for one in self.off)
        quality = "" if self.quality is None else f" predictor {self.quality:g}"
        order = "" if self.order is Order.OLDEST else f" {self.order.value}"
        return f"{self.strategy.value} {self.variant}{order}{switches}{quality}"

    @property
    def scheduling(self) -> Scheduling:
        """As a job's spec says it."""
        return Scheduling(self.strategy, self.off, self.knobs)


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    cell: Cell
    entry: Entry
    seed: int
    batches: int

    def key(self, context: Sequence[str]) -> str:
        """What must be equal for a finished run to count: the case, and digests of what it ran on."""
        text = json.dumps([asdict(self), *context], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:20]


OWN_BOUNDS: Final = {
    StrategyName.SLIME_SYNC: Bounds(1.0, 0),
    StrategyName.SLIME_ASYNC: Bounds(math.inf, math.inf),
    StrategyName.SLIME_BOUNDED: Bounds(math.inf, 2),
    StrategyName.ROLLFLASH: Bounds(2.0, 1),
    StrategyName.AIMD: Bounds(math.inf, 8),
}
"""Bounds that a system brings as published; the others have no trainer and take the regime's.

slime's pool is 512 groups an engine, more than any run here has; ROLL Flash's ratio of 1 keeps two
episodes a queue; prime-rl's cap counts rollouts, and its default lag is 8.
"""

BASELINES: Final = (
    StrategyName.SLIME_SYNC, StrategyName.THUNDERAGENT_PAPER, StrategyName.SLIME_BOUNDED,
    StrategyName.ROLLFLASH, StrategyName.TTL, StrategyName.THUNDERAGENT_UPSTREAM,
    StrategyName.SLIME_ASYNC, StrategyName.AIMD, StrategyName.LONGEST,
)  # fmt: skip
"""The strongest and the named ones first."""

ALIKE: Final = (StrategyName.SLIME_ASYNC,)
"""Within a regime's a and m it is `slime-bounded`, whose lag of 2 is every regime's m or above it: it is
run as published alone."""

COMPARED: Final = tuple(strategy for strategy in BASELINES if strategy not in ALIKE)

VENUS: Final = Entry(StrategyName.VENUS, NORMAL)
ORACLE: Final = Entry(StrategyName.ORACLE, NORMAL, quality=1.0, order=Order.NEAREST)
ORACLES: Final = (ORACLE, replace(ORACLE, order=Order.LONGEST))
"""By the orders that look at remaining work: by `oldest` nobody is asked for it."""
RANDOM: Final = Entry(StrategyName.RANDOM, NORMAL)
UNPREDICTED: Final = Entry(StrategyName.VENUS, NORMAL, off=(Mechanism.PREDICTOR,))
"""What a job gets by its defaults with the predictor off."""
ENDLESS: Final = Entry(StrategyName.VENUS, UNBOUNDED, bounds=Bounds(math.nan, math.inf))
"""The regime's a, no bound on staleness."""


def bounds_of(entry: Entry, regime: Regime, batches: int) -> tuple[float, int]:
    """a and m of a run; what is infinite becomes all that the run has."""
    if entry.bounds is None:
        return regime.async_ratio, regime.max_staleness
    a, m = entry.bounds.async_ratio, entry.bounds.max_staleness
    a = regime.async_ratio if math.isnan(a) else a
    return float(min(a, batches)), int(min(m, batches))


def is_within(entry: Entry, regime: Regime) -> bool:
    """Whether a run keeps to the regime's a and m."""
    own = entry.bounds
    return own is None or (
        own.async_ratio <= regime.async_ratio and own.max_staleness <= regime.max_staleness
    )


def main_entry(strategy: StrategyName, regime: Regime) -> Entry:
    """A strategy by its defaults, within the regime's a and m."""
    if strategy not in BASELINES:
        return ORACLE if strategy is StrategyName.ORACLE else Entry(strategy, NORMAL)
    published = Entry(strategy, PUBLISHED, bounds=OWN_BOUNDS.get(strategy))
    return published if is_within(published, regime) else Entry(strategy, WITHIN)


def apart_entries(regime: Regime) -> list[Entry]:
    """As published, beyond the regime's a and m."""
    entries = [
        Entry(strategy, PUBLISHED, bounds=OWN_BOUNDS[strategy])
        for strategy in BASELINES
        if strategy in OWN_BOUNDS
    ]
    return [entry for entry in entries if not is_within(entry, regime)]


def tuned_knobs() -> Mapping[StrategyName, tuple[tuple[str, float], ...]]:
    """Winners of the committed sweep that are not the defaults."""
    if not TUNED_FILE.exists():
        return {}
    table = json.loads(TUNED_FILE.read_text())["tuned"]
    return {
        StrategyName(name): tuple(sorted(knobs.items())) for name, knobs in table.items() if knobs
    }


def tuned_entries() -> list[Entry]:
    """Baselines that a sweep made faster."""
    knobs = tuned_knobs()
    return [Entry(name, TUNED, knobs[name]) for name in COMPARED if name in knobs]


def ablation_entries() -> list[Entry]:
    """`venus` with one mechanism off at a time."""
    return [Entry(StrategyName.VENUS, NORMAL, off=(one,)) for one in Mechanism]


def quality_entries() -> list[Entry]:
    """`venus`, which orders by remaining work, told it by predictors of growing quality."""
    return [
        Entry(StrategyName.VENUS, NORMAL, quality=quality, order=Order.NEAREST)
        for quality in QUALITIES
    ]


def ranked_entries(regime: Regime) -> list[tuple[int, Entry]]:
    """Every entry of a cell with the wave in which it runs: what a short run needs comes first."""
    first = [VENUS, *(main_entry(strategy, regime) for strategy in COMPARED)]
    second = [*ORACLES, ENDLESS, *tuned_entries(), RANDOM]
    third = apart_entries(regime)
    if regime.name in ABLATED:
        third += ablation_entries()
        third += quality_entries()
    waves = ((0, first), (1, second), (2, third))
    return [(wave, entry) for wave, entries in waves for entry in entries]


def cost_of(regime: Regime, batches: int) -> float:
    """How long a run takes beside others, roughly: rollouts, and how crowded they are."""
    crowd = max(1.0, regime.groups_open_max / regime.engines / 3.0)
    return regime.groups_per_batch * batches * math.sqrt(crowd)


HEAVY_COST: Final = 1_000.0
"""Cells above it (only `many` at full size) come last: one of their runs takes as long as ten others."""


def ordered_cases(
    regimes: Sequence[Regime],
    tiers: Sequence[bool],
    seeds: Sequence[int],
    batches: int,
) -> list[Case]:
    """All runs in the order of their use: waves inside seeds, cheap cells first, `many` last."""
    ranked: list[tuple[tuple[float, ...], Case]] = []
    for (place, regime), tier in product(enumerate(regimes), tiers):
        cost = cost_of(regime, batches)
        entries = enumerate(ranked_entries(regime))
        for (index, (wave, entry)), (turn, seed) in product(entries, enumerate(seeds)):
            rank = (float(cost > HEAVY_COST), turn, wave, cost, place, tier, index)
            ranked.append((rank, Case(Cell(regime.name, tier), entry, seed, batches)))
    return [case for _, case in sorted(ranked, key=lambda pair: pair[0])]
