"""The settings of the compared jobs: drawn once from a seed, varied in all that a what-if can change."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

SEED: Final = 4
"""Of the drawn settings: the same thirty on every machine."""

STEPS: Final = 5
"""Of each job: beyond the ramp of an asynchronous job, and thirty of them fit into the time."""

LEARNING_RATE: Final = 1e-6
"""So small that the policy, and with it turns and rewards, stays as it was recorded."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    group_size: int
    groups_per_batch: int
    max_staleness: int
    async_ratio: float
    engines: int

    @property
    def changes(self) -> dict[str, Any]:
        """What a what-if changes of the recorded job."""
        return {
            "rollout": {
                "group_size": self.group_size,
                "groups_per_batch": self.groups_per_batch,
            },
            "scheduling": {
                "max_staleness": self.max_staleness,
                "async_ratio": self.async_ratio,
            },
        }

    def spec(self, name: str, steps: int = STEPS) -> Mapping[str, Any]:
        """The job's spec."""
        return {
            "name": name,
            "model": {"base": "tiny-calc"},
            "environments": [{"ref": "calc"}],
            **self.changes,
            "optimizer": {"lr": LEARNING_RATE},
            "algorithm": {"on_no_signal": "skip"},
            "evaluation": None,
            "checkpoints": {"every_steps": 1000},
            "resources": {"rollout_gpus": {"min": self.engines, "max": self.engines}},
            "stop": {"max_steps": steps},
        }


RECORDED: Final = tuple(Case(8, 4, 1, 1.5, engines) for engines in (1, 2))
"""The jobs that all plans learn from, one for each number of engines: engines of the embedded stack
share the cores with each other and the trainer, which no simulation of separate hosts foresees."""

RECORDED_STEPS: Final = 10


def cases(count: int) -> list[Case]:
    """The first so many drawn settings."""
    chance = Random(SEED)
    return [_case(chance) for _ in range(count)]


def _case(chance: Random) -> Case:
    staleness = chance.choice((0, 1, 2))
    return Case(
        group_size=chance.choice((4, 8, 12)),
        groups_per_batch=chance.choice((2, 3, 4, 6)),
        max_staleness=staleness,
        async_ratio=1.0 if staleness == 0 else chance.choice((1.0, 1.5, 2.0)),
        engines=chance.choice((1, 2)),
    )
