"""A normalised job spec as the numbers of a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.plan import EXPECTED_TURNS, AfterTries, JobPlan, OnNoSignal
from domain.spec_parts import EngineRange, SchedulingUse
from infra.codec import convert
from simulation.declared import Bounds

NOBODY: Final = "plan"
"""Stands for job, attempt and tenant of a simulated job: nothing of it is stored."""

WATCHDOG_S: Final = 1e9
"""Nothing stalls in a simulation; a slow step is no stall."""


@dataclass(frozen=True, slots=True)
class _Sampling:
    max_tokens_per_turn: int = 2048


@dataclass(frozen=True, slots=True)
class _Rollout:
    group_size: int
    groups_per_batch: int
    sampling: _Sampling = field(default_factory=_Sampling)
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Environment:
    ref: str
    max_turns: int | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    base: str
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Resources:
    rollout_gpus: EngineRange


@dataclass(frozen=True, slots=True)
class _Stop:
    max_steps: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedSpec:
    """What of a normalised spec a plan reads."""

    model: _Model
    environments: tuple[_Environment, ...]
    rollout: _Rollout
    scheduling: SchedulingUse
    resources: _Resources
    stop: _Stop
    evaluation: Mapping[str, Any] | None = None

    @property
    def environment(self) -> str:
        """Name of its first environment."""
        return self.environments[0].ref.partition("@")[0]

    @property
    def bounds(self) -> Bounds:
        """Limits that cut a rollout."""
        return Bounds(
            turns_max=max(one.max_turns or 1 for one in self.environments),
            output_tokens_max=min(
                self.rollout.sampling.max_tokens_per_turn, self.rollout.max_tokens or 10**9
            ),
            context_tokens=max(self.model.context_tokens or 2, 2),
        )


def read_planned(spec: Mapping[str, object]) -> PlannedSpec:
    """Raises msgspec.ValidationError for a spec that lacks a field that a plan needs."""
    return convert(spec, PlannedSpec)


def job_plan(spec: PlannedSpec, engines: int, base_step: int, steps: int) -> JobPlan:
    """The core's numbers, on this many engines; steps of a simulated job begin at 1."""
    last = spec.stop.max_steps or base_step + steps
    return JobPlan(
        job_id=JobId(f"job_{NOBODY}"),
        attempt_id=AttemptId(f"att_{NOBODY}"),
        organization_id=OrganizationId(f"org_{NOBODY}"),
        project_id=ProjectId(f"prj_{NOBODY}"),
        group_size=spec.rollout.group_size,
        groups_per_batch=spec.rollout.groups_per_batch,
        max_staleness=spec.scheduling.max_staleness,
        async_ratio=spec.scheduling.async_ratio,
        order=spec.scheduling.order,
        max_steps=max(last - base_step, 1),
        tries=1,
        after_tries=AfterTries.SHRINK,
        min_group_size=1,
        pause_if_failed_share=1.0,
        on_no_signal=OnNoSignal.SKIP,
        checkpoint_every=10**9,
        evaluation=None,
        engines_min=engines,
        engines_max=engines,
        expected_turns=EXPECTED_TURNS,
        drain_s=1.0,
        retry_backoff_s=1.0,
        watchdog_s=WATCHDOG_S,
        scheduling=spec.scheduling.choice,
    )
