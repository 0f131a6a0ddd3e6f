"""The part of a job's normalised spec that the grader obeys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.advantage import AdvantageKind
from domain.plan import AfterTries
from domain.states import Purpose
from domain.task_lists import evaluated_list, own_list
from infra.codec import convert
from venusrl.env.messages import Json

MIN_GROUP_SIZE_DEFAULT: Final = 2
"""Of a spec that names none: a group of one has no signal."""


class OnTruncated(StrEnum):
    """What becomes of a rollout that a limit ended: graded as it is, left out, or worth zero."""

    SCORE = "score"
    MASK = "mask"
    ZERO = "zero"


class Control(StrEnum):
    """Negative controls."""

    SHUFFLED_REWARDS = "shuffled_rewards"


@dataclass(frozen=True, slots=True)
class EnvironmentUse:
    """One entry of `environments`."""

    config: Mapping[str, object] = field(default_factory=dict)
    split: str = "train"


@dataclass(frozen=True, slots=True)
class FailureUse:
    """`rollout.on_failure`."""

    then: AfterTries = AfterTries.SHRINK
    min_group_size: int = MIN_GROUP_SIZE_DEFAULT


@dataclass(frozen=True, slots=True)
class RolloutUse:
    """`rollout`."""

    on_truncated: OnTruncated = OnTruncated.SCORE
    on_failure: FailureUse = field(default_factory=FailureUse)


@dataclass(frozen=True, slots=True)
class AlgorithmUse:
    """`algorithm`."""

    advantage: AdvantageKind = AdvantageKind.GRPO
    control: Control | None = None


@dataclass(frozen=True, slots=True)
class EvaluationUse:
    """`evaluation`."""

    split: str = "test"
    environments: tuple[EnvironmentUse, ...] = ()


@dataclass(frozen=True, slots=True)
class GradingSpec:
    """What is read; every other field of the spec is somebody else's."""

    environments: tuple[EnvironmentUse, ...]
    judges: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    rollout: RolloutUse = field(default_factory=RolloutUse)
    algorithm: AlgorithmUse = field(default_factory=AlgorithmUse)
    evaluation: EvaluationUse | None = None

    def config(self, purpose: Purpose, number: int) -> Mapping[str, Json]:
        """Configuration of the environment at this place among those of a purpose."""
        uses = self._evaluated(purpose) or self.environments
        config: Mapping[str, Json] = convert(uses[number].config, dict)
        return config

    def task_list(self, purpose: Purpose, number: int) -> str:
        """Name of the list that a group's task comes from."""
        evaluated = self._evaluated(purpose)
        if evaluated:
            return evaluated_list(number, evaluated[number].split)
        if purpose is Purpose.EVALUATION and self.evaluation is not None:
            return own_list(number, self.evaluation.split)
        return own_list(number, self.environments[number].split)

    def _evaluated(self, purpose: Purpose) -> tuple[EnvironmentUse, ...]:
        """Environments that only evaluations use; none where they use the job's own."""
        if purpose is not Purpose.EVALUATION or self.evaluation is None:
            return ()
        return self.evaluation.environments

    def least_usable(self, size: int) -> int:
        """Members that must count for a training group of this size."""
        if self.rollout.on_failure.then is AfterTries.DROP:
            return size
        return max(min(self.rollout.on_failure.min_group_size, size), 1)


def read_spec(spec: object) -> GradingSpec:
    """Read a `job.spec` column. Raises msgspec.ValidationError for what the gateway let pass."""
    return convert(spec, GradingSpec)
