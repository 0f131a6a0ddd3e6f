"""What a run is made of, what goes on in it, and what it gave: records of `simulation.world`."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from domain import events as e
from domain.ids import RolloutId
from domain.plan import JobPlan
from simulation.engine import ModelledEngine
from simulation.faults import Faults
from simulation.physics import EnginePhysics
from simulation.stream import Stream
from simulation.trainer import ModelledTrainer
from simulation.workload.trajectory import Trajectory


class Trajectories(Protocol):
    """Where the rollouts of a run come from (`simulation.workload`, or a recorded job)."""

    def group(self, ordinal: int) -> Sequence[Trajectory]:
        """All members of a group."""
        ...

    def trajectory(self, ordinal: int, member: int) -> Trajectory:
        """One member of a group."""
        ...


Estimator = Callable[[RolloutId, Trajectory, int], e.Remaining]
"""A learned predictor: (rollout, its trajectory, finished turns) to what is left of it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is made of. `seconds_max` bounds virtual time: a run past it stands still."""

    plan: JobPlan
    physics: EnginePhysics
    engines: int
    workload: Trajectories
    trainer_tokens_s: float
    update_s: float = 10.0
    weight_sync_s: float = 5.0
    has_host_tier: bool = False
    tick_s: float = 5.0
    estimator: Estimator | None = None
    checking: bool = False
    seconds_max: float = 10_000_000.0
    faults: Faults | None = None


@dataclass(slots=True, eq=False)
class Episode:
    """A rollout as the environment sees it, wherever it is placed."""

    rollout_id: RolloutId
    trajectory: Trajectory
    turn: int = 0
    context: int = 0
    sampled: int = 0
    oldest: int | None = None
    newest: int = -1
    tool_until: float = 0.0
    is_told: bool = True
    """Its last tool's end was reported."""
    stream: Stream | None = None
    engine: ModelledEngine | None = None
    kept_tokens: int = 0
    """Context that the former engine still had when it let the rollout go."""
    tool_s: float = 0.0


@dataclass(slots=True)
class GroupOutcome:
    """How one trained group went."""

    ordinal: int
    opened_at: float
    completed_at: float = 0.0
    trained_step: int = 0
    staleness: int = 0


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    makespan_s: float
    steps: list[float]
    """When each step was durable."""
    staleness: Counter[int]
    dropped: Counter[str]
    groups: list[GroupOutcome]
    trained: list[int]
    """Ordinals in the order of training."""
    engines: list[ModelledEngine]
    trainer: ModelledTrainer
    events: int
    moves: int
