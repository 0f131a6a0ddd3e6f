"""Parts of a job spec that say how is learned: algorithm, optimizer, scheduling, checkpoints."""

from typing import Annotated, Final, Literal

from pydantic import Field, Strict

from venusrl.models.spec_base import Auto, PositiveInt, SpecPart


class Loss(SpecPart):
    """Policy loss with its clip range."""

    type: Literal["dapo", "grpo"] = "dapo"
    """Both clip; `dapo` clips less above."""
    clip_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """The ratio stays above 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0.0, le=10.0)] | Auto = "auto"
    """The ratio stays below 1 + clip_high; auto: 0.28 for dapo, clip_low for grpo."""
    aggregation: Literal["token_mean"] = "token_mean"
    """Mean over all sampled tokens of the batch."""


class Correction(SpecPart):
    """Correction of the mismatch between engine and trainer, and of staleness."""

    type: Literal["tis", "none"] = "tis"
    """Truncated importance sampling; `none` only where max_staleness is 0."""
    level: Literal["token"] = "token"
    """One weight a token."""
    cap: Annotated[float, Field(ge=1.0, le=100.0)] = 2.0
    """Largest weight."""


class Kl(SpecPart):
    """Penalty against the base model."""

    coef: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """0: no penalty, and no reference model in memory."""
    estimator: Literal["k3"] = "k3"
    """How it is estimated."""


PythonFunction = Annotated[
    str, Field(pattern=r"^python:[A-Za-z0-9_./-]{1,200}:[A-Za-z_][A-Za-z0-9_]{0,99}$")
]


class Algorithm(SpecPart):
    """Advantages, loss, correction."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp"] | PythonFunction = "grpo"
    """How rewards of a group become advantages; `python:FILE:FUNCTION` is the user's own."""
    loss: Loss = Loss()
    """Policy loss with its clip range."""
    correction: Correction = Correction()
    """Correction of the mismatch between engine and trainer, and of staleness."""
    kl: Kl = Kl()
    """Penalty against the base model."""
    zero_variance: Literal["drop_and_refill"] = "drop_and_refill"
    """Groups of equal rewards are dropped, and others take their places."""
    on_no_signal: Literal["skip", "wait", "pause"] = "pause"
    """What follows when no group of a whole batch had any reward variance."""
    task_sampling: Literal["uniform", "learning_yield"] = "uniform"
    """Every task once an epoch, or those that teach most."""
    control: Literal["shuffled_rewards"] | None = None
    """A negative control, which must not learn."""


class Optimizer(SpecPart):
    """AdamW with a global gradient clip."""

    type: Literal["adamw"] = "adamw"
    """The optimizer."""
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | Auto = "auto"
    """Learning rate; auto: by the size of the model."""
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]],
        Strict(False),
    ] = (0.9, 0.95)
    """Decay of the two moments."""
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Decoupled; norms are not decayed."""
    grad_clip: Annotated[float, Field(gt=0.0, le=1e9)] = 1.0
    """Largest norm of the whole gradient."""
    schedule: Literal["constant"] = "constant"
    """How the rate moves after the warm-up."""
    warmup_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Steps over which the rate rises from 0."""


Strategy = Literal[
    "venus",
    "slime-sync",
    "slime-async",
    "slime-bounded",
    "rollflash",
    "thunderagent-upstream",
    "thunderagent-paper",
    "aimd",
    "ttl",
    "longest",
    "oracle",
    "random",
]

Mechanism = Literal[
    "priority",
    "promotion",
    "residency",
    "demotion",
    "tiers",
    "admission",
    "migration",
    "streaming",
    "predictor",
]

KnobName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
KnobValue = Annotated[float, Field(ge=-1e9, le=1e9)]


class Scheduling(SpecPart):
    """Strategy, order and how far ahead of the trainer rollouts may run."""

    strategy: Strategy = "venus"
    """The scheduling policy as a whole: the platform's own, or one of those it is measured against."""
    off: Annotated[list[Mechanism], Field(max_length=9)] = Field(default_factory=list)
    """Mechanisms that are switched off, for ablation."""
    knobs: Annotated[dict[KnobName, KnobValue], Field(max_length=64)] = Field(default_factory=dict)
    """Numbers of the strategy by name; what is left out has the published default."""
    order: Literal["oldest", "nearest", "longest"] | Auto = "auto"
    """Which unfinished group goes first; auto: longest where nothing runs ahead, else oldest."""
    async_ratio: Annotated[float, Field(ge=1.0, le=16.0)] | Auto = "auto"
    """Unfinished groups at once, in batches; auto: 1 where nothing runs ahead, else 1.5."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 2
    """How many versions old the oldest token of a trained group may be."""


ExportForm = Literal["safetensors", "peft"]
DEFAULT_EXPORT: Final[tuple[ExportForm, ...]] = ("safetensors",)


class Checkpoints(SpecPart):
    """When checkpoints are written, besides the end, a pause and a cancel; how many stay."""

    every_steps: PositiveInt = 20
    """A checkpoint every so many steps."""
    keep_last: Annotated[int, Field(ge=2, le=1000)] = 2
    """How many of the newest stay."""
    keep_best: Annotated[int, Field(ge=0, le=1000)] = 1
    """How many with the best evaluation stay besides; only steps that were evaluated count."""
    ttl_days: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Days after which a checkpoint expires, unless it is kept or needed; null: never."""
    export: Annotated[list[ExportForm], Field(max_length=2)] = Field(
        default_factory=lambda: [*DEFAULT_EXPORT]
    )
    """Forms in which checkpoints are stored."""


OnDivergence = Literal["stop", "skip", "warn"]
