"""Parts of a job spec that say what is sampled: model, environments, judges, rollouts, evaluation."""

from typing import Annotated, Any, Literal

from pydantic import Field

from venusrl.models.common import TEMPERATURE_MIN, Temperature, TopP
from venusrl.models.spec_base import (
    Auto,
    EnvironmentName,
    EnvironmentRef,
    Name,
    PositiveInt,
    SecretName,
    Share,
    SpecPart,
    Split,
)


class Training(SpecPart):
    """How weights are trained."""

    type: Literal["full", "lora"] = "full"
    """`full` trains all weights."""
    rank: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Rank of the adapters; only with `lora`."""
    alpha: Annotated[float, Field(gt=0.0, le=4096.0)] | None = None
    """Scale of the adapters; only with `lora`."""
    targets: Literal["all-linear"] | Annotated[list[Name], Field(min_length=1)] | None = None
    """Which layers get adapters; only with `lora`."""


class Model(SpecPart):
    """The base model and how much of its context a rollout may fill."""

    base: Name
    """Name in the registry of models, `hf:ORG/NAME@REV`, `upload:ID`, or a checkpoint's id."""
    training: Training = Training()
    """How weights are trained."""
    context_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = None
    """Tokens of prompt and answers together; null: as many as the model and its engine hold."""
    on_history_rewrite: Literal["segment", "keep"] = "segment"
    """What a rewritten history becomes: another segment, or `keep`: the template's omission of earlier
    reasoning is not followed, and environments that rewrite are refused."""


class CommandHarness(SpecPart):
    """The user's own agent program, which runs in the sandbox."""

    command: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    """Program and arguments."""
    protocol: Literal["openai"] = "openai"
    """How it asks the model."""


class SandboxResources(SpecPart):
    """What one sandbox of the environment gets."""

    cpus: Annotated[float, Field(gt=0.0, le=256.0)] | None = None
    """CPUs."""
    memory_mb: Annotated[int, Field(ge=16, le=1_048_576)] | None = None
    """Memory."""
    disk_mb: Annotated[int, Field(ge=16, le=16_777_216)] | None = None
    """Disk."""


class DatasetUse(SpecPart):
    """A dataset whose rows are tasks of the environment."""

    ref: EnvironmentRef
    """`name@version`; without a version the newest ready one."""
    weight: Annotated[float, Field(gt=0.0, le=1_000_000.0)] = 1.0
    """Share of the tasks, relative to the other datasets."""


class EnvironmentPart(SpecPart):
    """What training and evaluation say alike of an environment."""

    name: EnvironmentName | None = None
    """Its name in metrics and results; null: that of the environment."""
    ref: EnvironmentRef
    """`name@version`; without a version the newest ready one."""
    weight: Annotated[float, Field(gt=0.0, le=1e9)] = 1.0
    """Share of the groups, or in the total of an evaluation, relative to the other environments."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Handed to the environment as it is."""
    datasets: Annotated[list[DatasetUse], Field(max_length=16)] = Field(default_factory=list)
    """Datasets that give the tasks of their splits, mixed by weight; none: those of the package."""
    filter: (
        Annotated[dict[Name, str | int | float | bool | None], Field(min_length=1, max_length=16)]
        | None
    ) = None
    """Only tasks whose metadata have these values, in every split; null is also what is missing."""
    limit: PositiveInt | None = None
    """Only the first tasks of the split that pass the filter."""
    harness: Literal["chat"] | CommandHarness | None = None
    """`chat` is the platform's turn loop; null: from the environment."""
    max_turns: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Turns of one rollout; null: from the environment."""
    wall_s: Annotated[float, Field(gt=0.0, le=86_400.0)] | None = None
    """Seconds of one rollout; null: from the environment."""
    resources: SandboxResources | None = None
    """Of each sandbox; null: from the environment."""


class EnvironmentUse(EnvironmentPart):
    """One environment that a job trains on."""

    split: Split = "train"
    """Tasks to train on."""
    shuffle: bool = True
    """Whether each epoch has an order of its own, drawn from the job's seed."""


class EvaluationEnvironment(EnvironmentPart):
    """One environment that a job is only evaluated on."""

    split: Split | None = None
    """Tasks to evaluate on; null: `evaluation.split`."""


class Judge(SpecPart):
    """A model that rewards ask: one that the platform serves, or an OpenAI-compatible URL."""

    base: Name | None = None
    """Model of the registry; or `url`."""
    url: Annotated[str, Field(pattern=r"^https?://[^\s]{1,2000}$")] | None = None
    """Address, up to `/v1`: the platform asks `/chat/completions` below it; or `base`."""
    model: Name | None = None
    """The judge's name at `url`."""
    secret: SecretName | None = None
    """Secret that holds its key, sent as a bearer token."""
    max_concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Calls at once, on each node."""
    max_cost_usd: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """Spending limit."""


Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=16)]


class Sampling(SpecPart):
    """How tokens are sampled."""

    temperature: Annotated[float, Field(ge=TEMPERATURE_MIN, le=10.0)] = 1.0
    """Above 0: an answer without chance cannot be learned from."""
    top_p: TopP = 1.0
    """Nucleus."""
    max_tokens_per_turn: PositiveInt = 2048
    """Tokens of one answer at most; the context's end comes first where it is nearer."""
    stop: Stops = Field(default_factory=list)
    """Texts that end an answer."""


class OnFailure(SpecPart):
    """What happens when a rollout's tries fail for infrastructure reasons."""

    tries: Annotated[int, Field(ge=1, le=10)] = 3
    """Executions of a rollout at most."""
    then: Literal["shrink", "drop"] = "shrink"
    """Train the group without it, or drop the group."""
    min_group_size: Annotated[int, Field(ge=1, le=1024)] | Auto = "auto"
    """Least members of a shrunk group; auto: half of the group."""


class RolloutUse(SpecPart):
    """Groups, batches and what ends a rollout."""

    group_size: Annotated[int, Field(ge=1, le=512)] = 8
    """Rollouts of one task."""
    groups_per_batch: Annotated[int, Field(ge=1, le=4096)] = 16
    """Groups of one optimizer step."""
    sampling: Sampling = Sampling()
    """How tokens are sampled."""
    max_tokens: PositiveInt | None = None
    """Sampled tokens of a whole rollout; null: only the context bounds them."""
    kv_on_update: Literal["keep", "drop"] = "keep"
    """What a rollout's cached keys become when weights are updated under it: it goes on over them, or
    `drop`: its context is computed anew by the new weights, at the cost of a prefill for each update."""
    on_truncated: Literal["score", "mask", "zero"] = "score"
    """What a rollout is worth that a limit ended: its reward, nothing trained, or zero."""
    on_failure: OnFailure = OnFailure()
    """What happens when tries fail for infrastructure reasons."""
    pause_job_if_failed_share: Share = 0.2
    """Share of failed tries, over three batches, above which the job pauses itself."""


class EvaluationSampling(SpecPart):
    """What differs from training's sampling."""

    temperature: Temperature | None = None
    """0 is greedy."""
    top_p: TopP | None = None
    """Nucleus."""
    max_tokens_per_turn: PositiveInt | None = None
    """Tokens of one answer at most."""
    stop: Stops | None = None
    """Texts that end an answer."""


class Evaluation(SpecPart):
    """Held-out evaluation at step 0, every n steps when asked, and at the end; weights are pinned."""

    every_steps: PositiveInt | None = None
    """Also every so many steps."""
    environments: Annotated[list[EvaluationEnvironment], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Environments to evaluate on, instead of the job's own; empty: the job's own."""
    split: Split = "test"
    """Tasks to evaluate on."""
    tasks: Annotated[int, Field(ge=1, le=9_999)] = 200
    """How many of them, of each environment; of a smaller split each task once."""
    rollouts_per_task: Annotated[int, Field(ge=1, le=64)] = 1
    """Rollouts of each task."""
    sampling: EvaluationSampling = EvaluationSampling()
    """What differs from training's sampling."""
    select_best: Name | None = None
    """Number of the evaluation by which checkpoints are compared, more is better: `score`, `avg@k`,
    `pass@k` or a reward or metric of the environment; `NAME/` before it: of one environment. Null:
    `score`."""
