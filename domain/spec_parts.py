"""Parts of a normalised job spec that more than one process reads, with one reading of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.plan import Mechanism, Order, Scheduling, StrategyName


@dataclass(frozen=True, slots=True)
class SchedulingChoice:
    """Of the scheduling part of a spec, what engines and trainers obey too."""

    strategy: StrategyName = StrategyName.VENUS
    off: tuple[Mechanism, ...] = ()
    knobs: Mapping[str, float] = field(default_factory=dict)

    @property
    def choice(self) -> Scheduling:
        """The core's form of it; knobs in the order of their names."""
        return Scheduling(self.strategy, self.off, tuple(sorted(self.knobs.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingUse(SchedulingChoice):
    """The scheduling part of a spec."""

    max_staleness: int
    order: Order
    async_ratio: float


@dataclass(frozen=True, slots=True)
class EngineRange:
    """Least and most engine hosts of a job."""

    min: int
    max: int
