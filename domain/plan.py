"""What the core needs of a normalised job spec, and the pool that it schedules over."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.sandbox import SandboxTemplate

EXPECTED_TURNS: Final = 4
"""Prior of the turns of a rollout until a job has history; half of the usual turn limit."""


class Order(StrEnum):
    """How unfinished groups of a job are ordered (`scheduling.md` section 3)."""

    OLDEST = "oldest"
    NEAREST = "nearest"
    LONGEST = "longest"


class StrategyName(StrEnum):
    """A scheduling policy as a whole (`scheduling.md` section 11)."""

    VENUS = "venus"
    SLIME_SYNC = "slime-sync"
    SLIME_ASYNC = "slime-async"
    SLIME_BOUNDED = "slime-bounded"
    ROLLFLASH = "rollflash"
    THUNDERAGENT_UPSTREAM = "thunderagent-upstream"
    THUNDERAGENT_PAPER = "thunderagent-paper"
    AIMD = "aimd"
    TTL = "ttl"
    LONGEST = "longest"
    ORACLE = "oracle"
    RANDOM = "random"


class Mechanism(StrEnum):
    """One mechanism of `venus`, with a switch of its own for ablation."""

    PRIORITY = "priority"
    """The rank orders engine slots, prefill and retraction; off: first come, first served."""
    PROMOTION = "promotion"
    """A group at its last valid step goes before everything else."""
    RESIDENCY = "residency"
    """Three KV classes decide eviction; off: plain recency."""
    DEMOTION = "demotion"
    """High demand above the capacity makes the worst-ranked low; off: all that are high share the room by
    recency, and push each other out."""
    TIERS = "tiers"
    """Expected tool gaps decide which pages leave the device early; off: pages leave under pressure."""
    ADMISSION = "admission"
    """Groups in flight follow KV pressure; off: only pacing bounds them."""
    MIGRATION = "migration"
    """Rollouts move between engines with their prefix."""
    STREAMING = "streaming"
    """The trainer runs backward on each group when it is assigned, not when the batch is whole."""
    PREDICTOR = "predictor"
    """Estimates of remaining work order; off: only the plan's prior. An order by age asks neither."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The strategy of a job: its name, mechanisms that are switched off, and its own numbers.

    `knobs` are pairs of a name that the strategy declares and its value; what is left out has the
    strategy's published default.
    """

    strategy: StrategyName = StrategyName.VENUS
    off: tuple[Mechanism, ...] = ()
    knobs: tuple[tuple[str, float], ...] = ()

    def has(self, mechanism: Mechanism) -> bool:
        """Whether this mechanism is on."""
        return mechanism not in self.off

    def knob(self, name: str, default: float) -> float:
        """The value of one of the strategy's own numbers."""
        return next((value for key, value in self.knobs if key == name), default)


class AfterTries(StrEnum):
    """What follows when a rollout has exhausted its tries."""

    SHRINK = "shrink"
    DROP = "drop"


class OnNoSignal(StrEnum):
    """What follows when no group of a whole batch had any reward variance."""

    SKIP = "skip"
    WAIT = "wait"
    PAUSE = "pause"


class Priority(StrEnum):
    """Class of a job in the queue for a gang."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The numbers of a plan that a user may change while the job runs."""

    max_steps: int
    priority: Priority


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Held-out evaluation: `tasks` groups of `rollouts_per_task`; steps 0 and the last always run.

    `tasks` counts those of all environments.
    """

    tasks: int
    rollouts_per_task: int
    every_steps: int | None


@dataclass(frozen=True, slots=True)
class EngineUse:
    """How a job uses engines.

    `base` None: whole engines, which nobody else generates on while the job holds them (full weights,
    or one LoRA job alone). Else the base model whose engines LoRA jobs share, slot by slot.
    """

    base: str | None = None


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The numbers of one attempt that scheduling depends on. Seconds are wall-clock seconds."""

    job_id: JobId
    attempt_id: AttemptId
    organization_id: OrganizationId
    project_id: ProjectId
    group_size: int
    groups_per_batch: int
    max_staleness: int
    async_ratio: float
    order: Order
    max_steps: int
    tries: int
    after_tries: AfterTries
    min_group_size: int
    pause_if_failed_share: float
    on_no_signal: OnNoSignal
    checkpoint_every: int
    evaluation: EvaluationPlan | None
    engines_min: int
    engines_max: int
    expected_turns: int
    """Prior of the turns of a rollout, used by eta until the job has history."""
    drain_s: float
    retry_backoff_s: float
    watchdog_s: float
    """Floor of the bound after which a job without a completed group names its blocked resource."""
    priority: Priority = Priority.NORMAL
    target_eval: float | None = None
    """Selected number of an evaluation that ends the job."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    engine_use: EngineUse = EngineUse()
    sandbox_bytes: int = 0
    """Ceiling of the memory of one of its sandboxes; 0: all sandboxes of the pool count alike."""
    templates: tuple[SandboxTemplate, ...] = ()
    """Of its environments; none where nodes and their memory are not modelled."""

    @property
    def limits(self) -> JobLimits:
        """What of it may change."""
        return JobLimits(self.max_steps, self.priority)


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What one organization has of the pool: a weight for what is contended, and a guarantee.

    A gang is guaranteed when everything that the organization then holds is within these numbers, so
    a guarantee of engines without a trainer is none. What it leaves idle is lent to others.
    """

    organization_id: OrganizationId
    weight: float = 1.0
    engines: int = 0
    trainers: int = 0
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Capacity that gangs are granted from. `sandboxes` counts process sandboxes over all nodes."""

    engines: int
    trainers: int
    sandboxes: int
    grading_reserve: int
    """Sandboxes never given to agents, so that grading always finds room."""
    sandbox_bytes: int = 0
    """Memory for agents' sandboxes over all nodes; 0: only their number counts."""
    tenants: tuple[TenantShare, ...] = ()
    """Organizations with a weight or a guarantee of their own; all others weigh 1, guaranteed nothing."""
