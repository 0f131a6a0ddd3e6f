"""Jobs as the API shows them, their events, metrics, progress and ledger."""

from datetime import datetime
from typing import Any

from pydantic import Field

from venusrl.models._base import Answer, Wire
from venusrl.models.common import Finding, Id
from venusrl.models.job_spec import Labels, Name
from venusrl.models.spec_limits import Budget, MaxSteps, Priority


class Resolved(Answer):
    """One `auto` of a spec, with the value that it got and why."""

    pointer: str
    value: Any
    reason: str


class Validation(Answer):
    """Answer of POST /v1/jobs/validate."""

    valid: bool
    findings: list[Finding]
    spec: dict[str, Any] | None = None
    resolved: list[Resolved] = Field(default_factory=list)


class Failure(Answer):
    """Why a job failed, for a person."""

    code: str
    component: str | None = None
    retryable: bool = False
    hint: str | None = None


class Job(Answer):
    """A job."""

    id: str
    project_id: str
    name: str
    state: str
    desired: str
    attempt_id: str
    attempt: int
    generation: int
    observed_generation: int
    spec: dict[str, Any]
    labels: dict[str, str]
    queue_reason: str | None = None
    queue_position: int | None = None
    predicted_start: datetime | None = None
    """When a waiting job will get its engines, from the pace of those that run."""
    predicted_start_reason: str | None = None
    """Why nobody can say when."""
    failure: Failure | None = None
    best_checkpoint: str | None = None
    """The checkpoint with the best evaluation, by `evaluation.select_best`; None without one."""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    findings: list[Finding] = Field(default_factory=list)
    """Warnings of the validation; only in the answer of a creation or a branch."""


class JobPatch(Wire):
    """The fields of a job that may change while it runs. What is left out stays, whatever it is."""

    name: Name = Field(default_factory=str)
    labels: Labels = Field(default_factory=dict)
    """All labels; those that are left out go."""
    priority: Priority = Field(default_factory=lambda: "normal")
    """Class in the queue."""
    max_steps: MaxSteps = Field(default_factory=lambda: 1)
    """The last step. Committed steps stay: a job beyond it ends with what it has."""
    budget: Budget = Field(default_factory=Budget)
    """The whole budget; what is left out has no limit."""


class Restart(Wire):
    """Body of POST /v1/jobs/{id}/restart."""

    checkpoint: Id | None = None


class Branch(Wire):
    """Body of POST /v1/jobs/{id}/branch: a new job from the copy of a spec and a checkpoint."""

    checkpoint: Id | None = None
    """Of that job; the newest when not given."""
    name: Name | None = None
    """Of the new job; that of the old one when not given."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Part of a spec, laid over the copy: mappings are merged, everything else replaces."""


class Event(Answer):
    """One job event; `id` rises by one per event of the job."""

    id: int
    type: str
    body: dict[str, Any]
    created_at: datetime


class Metric(Answer):
    """One point of one series; each step has at most one point per series."""

    attempt_id: str
    step: int
    name: str
    value: float


class Estimate(Answer):
    """`avg@k` or `pass@k` over tasks, with its 95 % interval."""

    name: str
    value: float
    low: float
    high: float
    tasks: int


class EvaluatedEnvironment(Answer):
    """What an evaluation says of one environment; `components` are means of rewards and metrics."""

    name: str
    ref: str
    weight: float
    tasks: int
    scored: int
    unscorable: int
    score: float | None
    estimates: list[Estimate] = Field(default_factory=list)
    components: dict[str, float] = Field(default_factory=dict)


class Evaluation(Answer):
    """One finished held-out evaluation. `score` is the mean over all scored rollouts.

    Of several environments the numbers are totals over the tasks of all, each with the weight of its
    environment; `environments` has them apart.
    """

    attempt_id: str
    step: int
    tasks: int
    scored: int
    unscorable: int
    score: float | None
    seconds: float
    estimates: list[Estimate] = Field(default_factory=list)
    components: dict[str, float] = Field(default_factory=dict)
    """Means of rewards and metrics by name."""
    selected: float | None = None
    """The number by which checkpoints are compared (`evaluation.select_best`)."""
    environments: list[EvaluatedEnvironment] = Field(default_factory=list)
    """Empty where the job's own single environment is evaluated."""


class LedgerLine(Answer):
    """How many rollouts share purpose, end, verdict and disposition."""

    purpose: str
    end: str | None
    verdict: str | None
    disposition: str
    rollouts: int


class Ledger(Answer):
    """Every rollout of a job once."""

    rollouts: int
    lines: list[LedgerLine]
