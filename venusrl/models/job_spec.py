"""The job spec: what a user writes. Every field is known; what cannot be honoured yet is refused.

Only `name`, `model.base` and `environments` are required. `auto` is resolved at creation, and the
normalised spec, with every default filled in and each resolved value explained, is what the job keeps.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from venusrl.models.spec_base import Labels, Name, SpecPart, Variable
from venusrl.models.spec_limits import Budget, Resources, Retention, Stop, Tracker
from venusrl.models.spec_rollout import EnvironmentUse, Evaluation, Judge, Model, RolloutUse
from venusrl.models.spec_training import (
    Algorithm,
    Checkpoints,
    OnDivergence,
    Optimizer,
    Scheduling,
)

__all__ = ["JobSpec", "Labels", "Name", "ResolvedValue"]


class ResolvedValue(SpecPart):
    """One value that the platform chose, and why."""

    pointer: Annotated[str, Field(pattern=r"^(/[^/]{1,100}){1,8}$")]
    """Where it stands in the spec."""
    value: Any
    """What was chosen."""
    reason: Annotated[str, Field(max_length=300)]
    """Why."""


class JobSpec(SpecPart):
    """A whole job, as submitted (with `auto`) or normalised (without)."""

    spec_version: Literal[1] = 1
    """Version of this form."""
    name: Name
    """For people; need not be unique."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Order of tasks and sampling follow from it."""
    model: Model
    """The base model and how it is trained."""
    environments: Annotated[list[EnvironmentUse], Field(min_length=1, max_length=32)]
    """What is trained on."""
    judges: Annotated[dict[Name, Judge], Field(max_length=32)] = Field(default_factory=dict)
    """Models that rewards ask, by name."""
    rollout: RolloutUse = RolloutUse()
    """Groups, batches and what ends a rollout."""
    algorithm: Algorithm = Algorithm()
    """Advantages, loss, correction."""
    optimizer: Optimizer = Optimizer()
    """AdamW with a global gradient clip."""
    scheduling: Scheduling = Scheduling()
    """How far ahead of the trainer rollouts may run."""
    evaluation: Evaluation | None = Evaluation()
    """Held-out evaluation; null: none."""
    checkpoints: Checkpoints = Checkpoints()
    """When checkpoints are written, and how many stay."""
    resources: Resources = Resources()
    """What the job needs of the pool."""
    stop: Stop = Stop()
    """When the job is done."""
    budget: Budget = Budget()
    """What the job may use up at most."""
    on_divergence: OnDivergence = "stop"
    """What follows a loss or gradient that is not finite: fail, skip the step, or leave the group out."""
    retention: Retention = Retention()
    """What stays of an ended job."""
    secrets: Annotated[dict[Variable, Name], Field(max_length=64)] = Field(default_factory=dict)
    """Secrets of the project by the variable that the environment sees."""
    trackers: Annotated[list[Tracker], Field(max_length=8)] = Field(default_factory=list)
    """Outside services that get the job's metrics."""
    labels: Labels = Field(default_factory=dict)
    """For people and for filters."""
    resolved: Annotated[list[ResolvedValue], Field(max_length=1_000)] = Field(default_factory=list)
    """Written by the platform: what each `auto` became and why. Of a submitted spec those stay whose
    value still stands."""
