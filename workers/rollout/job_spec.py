"""The part of a job's normalised spec that a rollout host obeys."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from domain.engine import KvMode, Sampling
from domain.spec_parts import SchedulingChoice
from infra.codec import convert
from kv.rules import KvRules, rules_of

MAX_TURNS_DEFAULT: Final = 16
"""Of an environment that names no limit; the same number as in `venusrl/env/host/manifest.py`."""

WALL_S_DEFAULT: Final = 600.0
"""Of an environment that names no limit; the same number as in `venusrl/env/host/manifest.py`."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """`model`: the base's registry name, a context shorter than the model's, what a rewrite does."""

    base: str
    context_tokens: int | None = None
    on_history_rewrite: Literal["segment", "keep"] = "segment"

    @property
    def keeps_history(self) -> bool:
        """Whether earlier reasoning stays in the prompts, whatever the model's template does."""
        return self.on_history_rewrite == "keep"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """One entry of `environments`; None means that the environment's own limit holds."""

    max_turns: int | None = None
    wall_s: float | None = None


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """`rollout.sampling`."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens_per_turn: int = 2048
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationSamplingSpec:
    """`evaluation.sampling`: what it leaves out is as in training."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens_per_turn: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """`evaluation`."""

    sampling: EvaluationSamplingSpec | None = None
    environments: tuple[EnvironmentSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """`rollout`; `max_tokens` bounds the sampled tokens of a whole rollout."""

    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    max_tokens: int | None = None
    kv_on_update: KvMode = KvMode.KEEP


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is read; every other field of the spec is somebody else's."""

    model: ModelSpec
    environments: tuple[EnvironmentSpec, ...]
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    evaluation: EvaluationSpec | None = None
    scheduling: SchedulingChoice = field(default_factory=SchedulingChoice)

    @property
    def rules(self) -> KvRules:
        """What the job's engines obey."""
        return rules_of(self.scheduling.choice)

    def environment(self, number: int, is_evaluation: bool) -> EnvironmentSpec:
        """The environment at this place; evaluations have their own, or those of training."""
        own = self.evaluation.environments if is_evaluation and self.evaluation else ()
        return (own or self.environments)[number]

    def sampling(self, is_evaluation: bool) -> SamplingSpec:
        """How a training or an evaluation rollout samples."""
        base = self.rollout.sampling
        other = self.evaluation.sampling if self.evaluation is not None else None
        if not is_evaluation or other is None:
            return base
        return SamplingSpec(
            temperature=base.temperature if other.temperature is None else other.temperature,
            top_p=base.top_p if other.top_p is None else other.top_p,
            max_tokens_per_turn=other.max_tokens_per_turn or base.max_tokens_per_turn,
            stop=base.stop if other.stop is None else other.stop,
        )


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """What bounds one rollout. `context_tokens` holds prompt and everything still to be sampled."""

    context_tokens: int
    max_turns: int
    max_tokens_per_turn: int
    max_tokens: int | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Limits:
    max_turns: int = MAX_TURNS_DEFAULT
    wall_s: float = WALL_S_DEFAULT


@dataclass(frozen=True, slots=True)
class _Manifest:
    limits: _Limits = field(default_factory=_Limits)


def read_spec(spec: object, manifests: Sequence[object], context_tokens_max: int) -> JobSpec:
    """Read a `job.spec` column; limits that it leaves to an environment come from its manifest.

    `manifests` are those of all environments, in the order of the spec, evaluation's last.
    `context_tokens_max` is the installation's. Raises msgspec.ValidationError for what the gateway
    let pass.
    """
    read = convert(spec, JobSpec)
    evaluation = read.evaluation or EvaluationSpec()
    uses = (*read.environments, *evaluation.environments)
    resolved = [_resolved(one, of) for one, of in zip(uses, manifests, strict=True)]
    own = len(read.environments)
    context = min(read.model.context_tokens or context_tokens_max, context_tokens_max)
    return replace(
        read,
        model=replace(read.model, context_tokens=context),
        environments=tuple(resolved[:own]),
        evaluation=read.evaluation and replace(evaluation, environments=tuple(resolved[own:])),
    )


def _resolved(environment: EnvironmentSpec, manifest: object) -> EnvironmentSpec:
    own = convert(manifest, _Manifest).limits
    return EnvironmentSpec(
        max_turns=environment.max_turns or own.max_turns,
        wall_s=environment.wall_s or own.wall_s,
    )


def limits_of(
    spec: JobSpec, context_tokens: int, is_evaluation: bool, number: int = 0
) -> RolloutLimits:
    """Limits of a rollout of the environment at this place, on an engine of so long a context."""
    environment = spec.environment(number, is_evaluation)
    return RolloutLimits(
        context_tokens=min(context_tokens, spec.model.context_tokens or context_tokens),
        max_turns=environment.max_turns or MAX_TURNS_DEFAULT,
        max_tokens_per_turn=spec.sampling(is_evaluation).max_tokens_per_turn,
        max_tokens=spec.rollout.max_tokens,
        wall_s=environment.wall_s or WALL_S_DEFAULT,
    )


def sampling_of(
    spec: SamplingSpec, max_tokens: int, seed: int, stop_token_ids: tuple[int, ...]
) -> Sampling:
    """The engine's form of one turn's sampling."""
    return Sampling(
        max_tokens=max_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        seed=seed,
        stop_token_ids=stop_token_ids,
        stop=spec.stop,
    )
