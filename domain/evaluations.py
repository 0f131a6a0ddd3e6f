"""Numbers of one evaluation by name, and the one by which checkpoints are compared.

A name is `score`, `avg@k`, `pass@k`, or a reward or metric of the environment; `NAME/` before it takes
the number of that environment. More is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from domain.estimates import (
    FULL_MARKS,
    Estimate,
    Stratum,
    estimates,
    total_estimates,
    total_mean,
)

SCORE: Final = "score"
"""Mean reward over all scored rollouts."""


@dataclass(frozen=True, slots=True)
class EvaluatedUse:
    """An environment as evaluations name it; `weight` is that of each of its tasks in the total."""

    name: str
    ref: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Component:
    """Mean of a reward or metric over the rollouts that have it as a number."""

    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """What an evaluation says of one environment."""

    use: EvaluatedUse
    tasks: int
    unscorable: int
    rewards: Sequence[Sequence[float]]
    """Of each task's scored rollouts."""
    components: Mapping[str, Component]
    full_marks: float = FULL_MARKS
    """The reward with which a rollout passes: the sum of its positive weights."""

    @property
    def scored(self) -> int:
        """Rollouts with a reward."""
        return sum(len(task) for task in self.rewards)

    @property
    def score(self) -> float | None:
        """Mean reward over the scored rollouts; None without one."""
        return sum(r for task in self.rewards for r in task) / self.scored if self.scored else None

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """avg@k and pass@k."""
        return estimates(self.rewards, self.full_marks)

    @property
    def values(self) -> dict[str, float]:
        """Its numbers by name."""
        return _named(self.score, self.estimates, means_of(self.components))


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What an evaluation says of all environments together."""

    environments: Sequence[EnvironmentResult]

    @property
    def score(self) -> float | None:
        """Mean over all scored rollouts, each with its environment's weight."""
        if len(self.environments) == 1:
            return self.environments[0].score
        parts = [
            (one.use.weight, one.score, one.scored)
            for one in self.environments
            if one.score is not None
        ]
        return total_mean(parts)

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """avg@k and pass@k over the tasks of all."""
        if len(self.environments) == 1:
            return self.environments[0].estimates
        return total_estimates(
            [Stratum(one.use.weight, one.rewards, one.full_marks) for one in self.environments]
        )

    @property
    def components(self) -> dict[str, float]:
        """Means of rewards and metrics over the environments that have them."""
        names = sorted({name for one in self.environments for name in one.components})
        means = {}
        for name in names:
            parts = [
                (one.use.weight, one.components[name].mean, one.components[name].count)
                for one in self.environments
                if name in one.components
            ]
            mean = total_mean(parts)
            if mean is not None:
                means[name] = mean
        return means

    def selected(self, wanted: str | None) -> float | None:
        """The number by which checkpoints are compared; None when this evaluation lacks it."""
        name, _, rest = (wanted or SCORE).rpartition("/")
        if not name:
            return _named(self.score, self.estimates, self.components).get(rest)
        found = (one for one in self.environments if one.use.name == name)
        environment = next(found, None)
        return None if environment is None else environment.values.get(rest)


def means_of(components: Mapping[str, Component]) -> dict[str, float]:
    """Means by name."""
    return {name: one.mean for name, one in sorted(components.items())}


def _named(
    score: float | None, shown: Sequence[Estimate], components: Mapping[str, float]
) -> dict[str, float]:
    values = {**components, **{one.name: one.value for one in shown}}
    return values if score is None else {**values, SCORE: score}
