"""The part of a job's normalised spec that the trainer acts on; every `auto` is resolved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.spec_parts import SchedulingChoice
from infra.codec import convert
from kv.rules import rules_of
from workers.trainer.losses.policy import Clip


class LossType(StrEnum):
    """Named losses; both average over all sampled tokens of the batch."""

    GRPO = "grpo"
    DAPO = "dapo"


class CorrectionType(StrEnum):
    """How disagreement of engine and trainer is corrected."""

    TIS = "tis"
    NONE = "none"


class Schedule(StrEnum):
    """How the learning rate moves after the warm-up."""

    CONSTANT = "constant"


class OnDivergence(StrEnum):
    """What follows a non-finite loss or gradient; such a gradient is never applied.

    `stop` fails the job and names the rollout. `skip` commits the step with unchanged weights and
    drops its groups. `warn` leaves the guilty group out and updates from the others.
    """

    STOP = "stop"
    SKIP = "skip"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Base model: a registry name or a checkpoint id."""

    base: str


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Distribution that rollouts are sampled from."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Size of a batch and its sampling."""

    groups_per_batch: int
    sampling: SamplingSpec = field(default_factory=SamplingSpec)


@dataclass(frozen=True, slots=True)
class LossSpec:
    """Loss and clip range; GRPO and DAPO differ by their ranges."""

    type: LossType = LossType.DAPO
    clip_low: float = 0.2
    clip_high: float = 0.28
    clip_dual: float | None = None

    @property
    def clip(self) -> Clip:
        """The range as the loss takes it."""
        return Clip(self.clip_low, self.clip_high, self.clip_dual)


@dataclass(frozen=True, slots=True)
class CorrectionSpec:
    """Truncated importance sampling per token."""

    type: CorrectionType = CorrectionType.TIS
    cap: float = 2.0


@dataclass(frozen=True, slots=True)
class KlSpec:
    """Penalty against the base model; 0 switches it and the reference model off."""

    coef: float = 0.0


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """Loss, correction and penalty."""

    loss: LossSpec = field(default_factory=LossSpec)
    correction: CorrectionSpec = field(default_factory=CorrectionSpec)
    kl: KlSpec = field(default_factory=KlSpec)


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """AdamW (Loshchilov and Hutter 2019) with a global gradient clip."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    schedule: Schedule = Schedule.CONSTANT
    warmup_steps: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointSpec:
    """How often the leader asks for one (None: at the end only), how many of the newest stay, and how
    many with the best evaluation besides."""

    every_steps: int | None = None
    keep_last: int = 2
    keep_best: int = 0


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """What the trainer reads of a job."""

    model: ModelSpec
    rollout: RolloutSpec
    optimizer: OptimizerSpec
    algorithm: AlgorithmSpec = field(default_factory=AlgorithmSpec)
    checkpoints: CheckpointSpec = field(default_factory=CheckpointSpec)
    on_divergence: OnDivergence = OnDivergence.STOP
    scheduling: SchedulingChoice = field(default_factory=SchedulingChoice)
    seed: int = 0

    @property
    def streams(self) -> bool:
        """Whether groups are worked on as they are assigned, else when the whole batch is."""
        return rules_of(self.scheduling.choice).streams


def read_spec(spec: Mapping[str, object]) -> TrainSpec:
    """From the job row's normalised spec; fields that concern others are ignored."""
    return convert(dict(spec), TrainSpec)


def learning_rate(spec: OptimizerSpec, step: int) -> float:
    """Rate of `step` (1-based): linear warm-up, then constant. A function of the step alone, so
    that a resumed job continues exactly where it stood."""
    warm = min(1.0, step / spec.warmup_steps) if spec.warmup_steps > 0 else 1.0
    return spec.lr * warm
