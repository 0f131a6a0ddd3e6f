"""Parts of a job spec that bound a job: resources, end, budget, retention, secrets, trackers."""

from typing import Annotated, Literal

from pydantic import Field

from venusrl.models.spec_base import (
    MAX_STEPS_MAX,
    Auto,
    Name,
    PositiveInt,
    SecretName,
    Share,
    SpecPart,
)

Priority = Literal["low", "normal", "high"]
MaxSteps = Annotated[int, Field(ge=1, le=MAX_STEPS_MAX)]


class EngineRange(SpecPart):
    """Engine hosts of the job; on a pool without GPUs it counts the hosts that run on CPUs."""

    min: Annotated[int, Field(ge=1, le=4096)] = 1
    """The job waits in the queue for as many."""
    max: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """It takes no more, also when they are free; auto: all of the pool."""


class Resources(SpecPart):
    """What the job needs of the pool."""

    trainer_gpus: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Trainer hosts; auto: one."""
    rollout_gpus: EngineRange = EngineRange()
    """Engine hosts."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] | Auto = "auto"
    """GPUs that one engine spans; auto: one."""
    placement: Literal["split", "colocated"] | Auto = "auto"
    """Engines and trainer apart or on the same GPUs; auto: apart."""
    priority: Priority = "normal"
    """Class in the queue: a higher one is served first; what runs is not interrupted."""


class Stop(SpecPart):
    """When the job is done."""

    max_steps: MaxSteps | None = None
    """The last step; counted from the start of the weights, also over restarts and branches. Null:
    100, or as `max_epochs` says."""
    max_epochs: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Passes over the tasks: epochs * tasks / groups_per_batch steps, rounded down. With `max_steps`
    the smaller holds."""
    target_eval: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """The job ends once an evaluation's selected number (`evaluation.select_best`) is at least this."""


class Budget(SpecPart):
    """What the job may use up at most."""

    max_cost_usd: Annotated[float, Field(gt=0.0, le=1e9)] | None = None
    """Money."""
    max_wall_hours: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Hours in which it held hosts; queued and paused time does not count."""
    warn_at: Share = 0.8
    """Share of a limit at which the job says so, once."""
    on_limit: Literal["pause_with_checkpoint"] = "pause_with_checkpoint"
    """What follows at the limit; a resume needs a higher limit."""


class Retention(SpecPart):
    """What stays of an ended job."""

    trajectories: Literal["all", "trained", "none"] = "all"
    """Which trajectories stay."""
    days: PositiveInt | None = None
    """For how long; null: without end."""


class Tracker(SpecPart):
    """An outside service that gets the job's metrics."""

    type: Name
    """Which service."""
    project: Name | None = None
    """Its project."""
    secret: SecretName | None = None
    """Secret that holds its key."""
