"""A job's schedule: groups in the order in which they are served, and what each rollout waits for."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from venusrl.models._base import Answer

Lane = Literal["promoted", "critical", "normal", "evaluation", "complete", "assigned"]
"""Unfinished groups are promoted (the step being filled is the last that may train them), critical
(among those that unblock it next) or normal; complete ones wait for a position, assigned ones have it."""

Stage = Literal["waiting", "placed", "ended"]

WaitReason = Literal[
    "running", "in_tool", "attaching", "saving", "waits_for_slot", "waits_for_kv",
    "waits_for_step", "waits_for_weights", "waits_for_sandbox", "sandbox_starts", "waits_for_place",
    "waits_for_engine", "waits_for_node", "waits_for_host", "retry_backoff", "held_by_strategy",
    "paused_by_pressure", "cancelling", "waits_for_siblings", "waits_for_grade", "waits_for_batch",
    "waits_for_evaluation", "in_batch", "job_not_running", "not_reported",
]  # fmt: skip
"""What stands between a rollout and its next progress; docs/reference/schedule.md explains each."""

NextGroupReason = Literal[
    "may_start", "job_not_running", "last_step", "waits_for_engine", "waits_for_weights",
    "waits_for_signal", "waits_for_success", "staleness", "active_batch", "held_by_strategy",
    "evaluation", "sandboxes",
]  # fmt: skip
"""Whether one more training group may start, or the first thing that forbids it."""


class ScheduledRollout(Answer):
    """One rollout of a live group. `numbers` belong to the reason; times in them are Unix seconds."""

    id: str
    stage: Stage
    wait_reason: WaitReason | None
    """None when its group is not live any more: it was trained, evaluated or dropped."""
    numbers: dict[str, float] = Field(default_factory=dict)
    since: datetime | None = None
    """When it last made progress, or began to do what it does."""
    current_try: int
    hop: int
    turn: int
    tokens: int
    host: str | None = None


class ScheduledGroup(Answer):
    """One live group."""

    id: str
    lane: Lane
    ordinal: int
    eta_s: float | None = None
    """Estimated seconds to the end of its slowest rollout."""
    staleness: int | None = None
    """If it entered the step being filled now; frozen once assigned; None before its first token."""
    last_valid_step: int | None = None
    """The last step that may train it; None of an evaluation."""
    position: int | None = None
    opened_at: datetime
    node: str | None = None
    rollouts: list[ScheduledRollout]


class NextGroup(Answer):
    """Why no further training group starts at the moment."""

    reason: NextGroupReason
    numbers: dict[str, float] = Field(default_factory=dict)


class Schedule(Answer):
    """What a job's groups and rollouts wait for, as the scheduler said last."""

    job_id: str
    state: str
    written_at: datetime | None = None
    """None before the scheduler has said anything; an unchanged schedule is not written again."""
    filling_step: int | None = None
    """None when all steps are committed."""
    need: int | None = None
    """Groups that the next batch still lacks."""
    next_group: NextGroup | None = None
    lanes: dict[str, int]
    """Groups of each lane, also of those that are not listed."""
    groups: list[ScheduledGroup]
    """In the order in which they are served."""
    groups_left_out: int = 0


class RolloutSchedule(ScheduledRollout):
    """What one rollout of a job waits for."""

    job_id: str
    job_state: str
    group_id: str
    lane: Lane | None = None
    written_at: datetime | None = None


class ActiveBatch(Answer):
    """What runs against what may run."""

    open_groups: int
    open_groups_max: int
    """ceil(async_ratio x groups_per_batch)."""
    groups_per_batch: int
    async_ratio: float
    running_rollouts: int
    waiting_rollouts: int
    engine_slots: int


class EngineProfile(Answer):
    """One engine host; counters since its start, None where it has said nothing yet."""

    host: str
    epoch: int
    policy_version: int
    rollouts: int
    slots: float | None = None
    active: float | None = None
    waiting: float | None = None
    kv_pages: float | None = None
    kv_pages_used: float | None = None
    kv_usage: float | None = None
    cached_tokens: float | None = None
    prefilled_tokens: float | None = None
    hit_rate: float | None = None
    """Prompt tokens that were not computed again, of all prompt tokens."""
    sampled_tokens: float | None = None
    preemptions: float | None = None
    evictions: float | None = None
    tokens_per_s: float | None = None
    busy_s: float | None = None
    engaged_s: float | None = None
    """With turns in slots: computing, and what the engine does between two passes."""
    prefill_s: float | None = None
    """Of `busy_s`, computing prompts."""
    steps: float | None = None
    attended_tokens: float | None = None
    """That prefilled tokens attended to, summed over them."""
    kv_read_tokens: float | None = None
    """Contexts of the turns that decoded, summed over the steps."""


class SandboxProfile(Answer):
    """Sandboxes of the job, and the memory that they were given."""

    held: int
    free: int | None = None
    """Of the whole pool, for any job; None of an ended one."""
    total: int
    declared_bytes: int
    used_bytes: int | None = None
    """Private memory of its sandboxes at the last sample, in whole MiB."""
    used_bytes_reason: str | None = None
    """Why there is no number of used bytes."""


class Profile(Answer):
    """How well a job uses what it holds, as the scheduler said last; an ended one holds nothing."""

    job_id: str
    state: str
    written_at: datetime | None = None
    """When the figures were taken: of an ended job, at its end."""
    active_batch: ActiveBatch | None = None
    kv_usage: float | None = None
    hit_rate: float | None = None
    engines: list[EngineProfile] = Field(default_factory=list)
    sandboxes: SandboxProfile | None = None
    tokens_per_s: float | None = None
    failed_share: float | None = None
    filling_staleness: dict[str, int] = Field(default_factory=dict)
    """Groups of the step being filled by staleness."""
    staleness: dict[str, int] = Field(default_factory=dict)
    """Groups of all steps of the attempt by staleness."""
