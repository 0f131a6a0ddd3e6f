"""The scheduler's reading of a normalised job spec: numbers for the core, sampling for hosts.

Only fields that the scheduler needs; every `auto` was resolved by the API when the job was created.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domain.evaluations import EvaluatedUse
from domain.plan import (
    EXPECTED_TURNS,
    AfterTries,
    EvaluationPlan,
    JobPlan,
    OnNoSignal,
    Priority,
)
from domain.spec_parts import EngineRange, SchedulingUse
from domain.task_lists import evaluated_list, own_list
from infra.codec import convert
from infra.settings import Settings
from scheduler.mixing import mixed_sources
from stores.system.evaluations import Evaluated
from stores.system.jobs import JobRow

RETRY_BACKOFF_S: Final = 1.0
"""Before a failed try's successor starts, so that a broken node is not hammered."""

WATCHDOG_S: Final = 60.0
"""Floor of the stall bound: shorter silences are ordinary on a small machine."""


@dataclass(frozen=True, slots=True)
class EnvironmentUse:
    """The environment part of a spec; `ref` is `name@version` after normalisation."""

    ref: str
    config: Mapping[str, object] = field(default_factory=dict)
    split: str = "train"
    shuffle: bool = True
    limit: int | None = None
    weight: float = 1.0
    name: str | None = None


@dataclass(frozen=True, slots=True)
class FailureUse:
    """What happens to a rollout whose tries fail."""

    tries: int = 3
    then: AfterTries = AfterTries.SHRINK
    min_group_size: int = 2


@dataclass(frozen=True, slots=True)
class RolloutUse:
    """The rollout part of a spec."""

    group_size: int
    groups_per_batch: int
    on_failure: FailureUse = field(default_factory=FailureUse)
    pause_job_if_failed_share: float = 0.2


@dataclass(frozen=True, slots=True)
class EvaluationUse:
    """The evaluation part of a spec."""

    tasks: int
    rollouts_per_task: int = 1
    every_steps: int | None = None
    split: str = "test"
    environments: tuple[EnvironmentUse, ...] = ()
    select_best: str | None = None


@dataclass(frozen=True, slots=True)
class ResourcesUse:
    """The resources part of a spec."""

    rollout_gpus: EngineRange
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class AlgorithmUse:
    """The part of the algorithm that the coordinator obeys."""

    on_no_signal: OnNoSignal = OnNoSignal.PAUSE


@dataclass(frozen=True, slots=True)
class CheckpointsUse:
    """When checkpoints are written, besides the end and a cancel."""

    every_steps: int


@dataclass(frozen=True, slots=True)
class StopUse:
    """When the job is done."""

    max_steps: int
    target_eval: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """What the job may use up; of this version only time with hosts."""

    max_wall_hours: float | None = None
    warn_at: float = 0.8


@dataclass(frozen=True, slots=True)
class Spec:
    """Normalised spec as the scheduler reads it."""

    seed: int
    environments: tuple[EnvironmentUse, ...]
    rollout: RolloutUse
    scheduling: SchedulingUse
    evaluation: EvaluationUse | None
    checkpoints: CheckpointsUse
    resources: ResourcesUse
    stop: StopUse
    algorithm: AlgorithmUse = field(default_factory=AlgorithmUse)
    budget: BudgetUse = field(default_factory=BudgetUse)

    @property
    def evaluated(self) -> tuple[EnvironmentUse, ...]:
        """Environments that evaluations use: those named for it, else the job's own."""
        if self.evaluation is None:
            return ()
        return self.evaluation.environments or self.environments

    @property
    def evaluation_rules(self) -> Evaluated:
        """How the results of an evaluation are put together."""
        use = self.evaluation
        named = tuple(
            EvaluatedUse(one.name or one.ref.partition("@")[0], one.ref, one.weight)
            for one in self.evaluated
        )
        is_apart = len(named) > 1 or (use is not None and bool(use.environments))
        return Evaluated(named, is_apart, None if use is None else use.select_best)


def read_spec(spec: Mapping[str, object]) -> Spec:
    """Raises msgspec.ValidationError when the stored spec lacks a field that scheduling needs."""
    return convert(spec, Spec)


def plan_of(row: JobRow, spec: Spec, settings: Settings) -> JobPlan:
    """The core's numbers for the attempt that the user wants."""
    return JobPlan(
        job_id=row.job_id,
        attempt_id=row.attempt_id,
        organization_id=row.organization_id,
        project_id=row.project_id,
        group_size=spec.rollout.group_size,
        groups_per_batch=spec.rollout.groups_per_batch,
        max_staleness=spec.scheduling.max_staleness,
        async_ratio=spec.scheduling.async_ratio,
        order=spec.scheduling.order,
        max_steps=spec.stop.max_steps,
        tries=spec.rollout.on_failure.tries,
        after_tries=spec.rollout.on_failure.then,
        min_group_size=spec.rollout.on_failure.min_group_size,
        pause_if_failed_share=spec.rollout.pause_job_if_failed_share,
        on_no_signal=spec.algorithm.on_no_signal,
        checkpoint_every=spec.checkpoints.every_steps,
        evaluation=_evaluation_plan(row, spec),
        engines_min=spec.resources.rollout_gpus.min,
        engines_max=spec.resources.rollout_gpus.max,
        expected_turns=EXPECTED_TURNS,
        drain_s=settings.intervals.pause_drain_s,
        retry_backoff_s=RETRY_BACKOFF_S,
        watchdog_s=WATCHDOG_S,
        priority=spec.resources.priority,
        target_eval=spec.stop.target_eval,
        scheduling=spec.scheduling.choice,
    )


def evaluated_lists(spec: Spec) -> list[tuple[str, EnvironmentUse]]:
    """Names of the task lists of an evaluation, each with its environment."""
    if spec.evaluation is None:
        return []
    if not spec.evaluation.environments:
        split = spec.evaluation.split
        return [(own_list(number, split), use) for number, use in enumerate(spec.environments)]
    uses = enumerate(spec.evaluation.environments)
    return [(evaluated_list(number, use.split), use) for number, use in uses]


def evaluated_size(spec: Spec, stored: Mapping[str, Any] | None, use: EnvironmentUse) -> int:
    """Tasks of one environment in an evaluation, each once: an interval knows of no repeated one."""
    assert spec.evaluation is not None
    wanted = spec.evaluation.tasks
    if stored is None or "count" not in stored:
        return wanted
    is_limited = bool(spec.evaluation.environments) and not mixed_sources(stored.get("sources"))
    limit = use.limit if is_limited and use.limit is not None else wanted
    return min(wanted, limit, int(stored["count"]))


def _evaluation_plan(row: JobRow, spec: Spec) -> EvaluationPlan | None:
    use = spec.evaluation
    if use is None:
        return None
    lists = evaluated_lists(spec)
    groups = sum(evaluated_size(spec, row.tasks.get(name), one) for name, one in lists)
    return EvaluationPlan(groups, use.rollouts_per_task, use.every_steps)
