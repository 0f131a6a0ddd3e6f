"""The job spec: what a user writes. Fields of later versions of the spec are refused, never ignored.

Only `name`, `model.base` and `environments` are required. `auto` is resolved at creation and the
normalised spec, with every default filled in, is what the job keeps.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, Strict

from venusrl.models._base import Wire

Auto = Literal["auto"]
PositiveInt = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
LabelValue = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Labels = Annotated[dict[Name, LabelValue], Field(max_length=32)]


class SpecPart(Wire):
    """Part of a spec. A number is a number: neither `true` nor `"8"` is one."""

    model_config = ConfigDict(strict=True)


class Training(SpecPart):
    """How weights are trained; adapters come with a later version."""

    type: Literal["full"] = "full"


class Model(SpecPart):
    """The base model and how much of its context a rollout may fill."""

    base: Name
    training: Training = Training()
    context_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = None


class EnvironmentUse(SpecPart):
    """One environment of a job; `ref` is `name` or `name@version`."""

    ref: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}(@[0-9]{1,9})?$")]
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    config: dict[str, Any] = Field(default_factory=dict)
    split: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "train"
    limit: PositiveInt | None = None
    shuffle: bool = True
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    wall_s: Annotated[float, Field(gt=0.0, le=86_400.0)] | None = None


class Sampling(SpecPart):
    """How tokens are sampled."""

    temperature: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    max_tokens_per_turn: PositiveInt = 2048
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] = Field(
        default_factory=list
    )


class OnFailure(SpecPart):
    """What happens when a rollout's tries fail for infrastructure reasons."""

    tries: Annotated[int, Field(ge=1, le=10)] = 3
    then: Literal["shrink", "drop"] = "shrink"
    min_group_size: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"


class RolloutUse(SpecPart):
    """Groups, batches and what ends a rollout."""

    group_size: Annotated[int, Field(ge=1, le=512)] = 8
    groups_per_batch: Annotated[int, Field(ge=1, le=4096)] = 16
    sampling: Sampling = Sampling()
    max_tokens: PositiveInt | None = None
    on_truncated: Literal["score", "mask", "zero"] = "score"
    on_failure: OnFailure = OnFailure()
    pause_job_if_failed_share: Share = 0.2


class Loss(SpecPart):
    """Policy loss with its clip range."""

    type: Literal["dapo", "grpo"] = "dapo"
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    clip_high: Annotated[float, Field(gt=0.0, le=10.0)] | Auto = "auto"
    aggregation: Literal["token_mean"] = "token_mean"


class Correction(SpecPart):
    """Correction of the mismatch between engine and trainer, and of staleness."""

    type: Literal["tis", "none"] = "tis"
    level: Literal["token"] = "token"
    cap: Annotated[float, Field(ge=1.0, le=100.0)] = 2.0


class Kl(SpecPart):
    """Penalty against the base model."""

    coef: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    estimator: Literal["k3"] = "k3"


class Algorithm(SpecPart):
    """Advantages, loss, correction; `control` is a negative control that must not learn."""

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    loss: Loss = Loss()
    correction: Correction = Correction()
    kl: Kl = Kl()
    zero_variance: Literal["drop_and_refill"] = "drop_and_refill"
    on_no_signal: Literal["skip", "wait", "pause"] = "pause"
    control: Literal["shuffled_rewards"] | None = None


class Optimizer(SpecPart):
    """AdamW with a global gradient clip."""

    type: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | Auto = "auto"
    betas: Annotated[tuple[Share, Share], Strict(False)] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    grad_clip: Annotated[float, Field(gt=0.0)] = 1.0
    schedule: Literal["constant"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class Scheduling(SpecPart):
    """Strategy, order and how far ahead of the trainer rollouts may run."""

    strategy: Literal["venus"] = "venus"
    order: Literal["oldest", "nearest", "longest"] | Auto = "auto"
    async_ratio: Annotated[float, Field(ge=1.0, le=16.0)] | Auto = "auto"
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 2


class EvaluationSampling(SpecPart):
    """What differs from training's sampling; temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0.0, le=10.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    max_tokens_per_turn: PositiveInt | None = None


class Evaluation(SpecPart):
    """Held-out evaluation at step 0, every n steps when asked, and at the end; weights are pinned."""

    every_steps: PositiveInt | None = None
    split: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "test"
    tasks: Annotated[int, Field(ge=1, le=9_999)] = 200
    rollouts_per_task: Annotated[int, Field(ge=1, le=64)] = 1
    sampling: EvaluationSampling = EvaluationSampling()


class Checkpoints(SpecPart):
    """When checkpoints are written, besides the end, a pause and a cancel; how many stay.

    `keep_best` counts by the score of the evaluation of a checkpoint's step.
    """

    every_steps: PositiveInt = 20
    keep_last: Annotated[int, Field(ge=2, le=1000)] = 2
    keep_best: Annotated[int, Field(ge=0, le=1000)] = 1


class EngineRange(SpecPart):
    """Engine hosts of the job; on a pool without GPUs it counts the hosts that run on CPUs."""

    min: Annotated[int, Field(ge=1, le=4096)] = 1
    max: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"


class Resources(SpecPart):
    """What the job needs of the pool."""

    rollout_gpus: EngineRange = EngineRange()


class Stop(SpecPart):
    """When the job is done."""

    max_steps: Annotated[int, Field(ge=1, le=9_999)] = 100


class JobSpec(SpecPart):
    """A whole job, as submitted (with `auto`) or normalised (without)."""

    spec_version: Literal[1] = 1
    name: Name
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    model: Model
    environments: Annotated[list[EnvironmentUse], Field(min_length=1, max_length=1)]
    rollout: RolloutUse = RolloutUse()
    algorithm: Algorithm = Algorithm()
    optimizer: Optimizer = Optimizer()
    scheduling: Scheduling = Scheduling()
    evaluation: Evaluation | None = Evaluation()
    checkpoints: Checkpoints = Checkpoints()
    resources: Resources = Resources()
    stop: Stop = Stop()
    on_divergence: Literal["stop", "skip", "warn"] = "stop"
    labels: Labels = Field(default_factory=dict)
