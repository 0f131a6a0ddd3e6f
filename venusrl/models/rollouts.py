"""Groups, rollouts, trajectories."""

from datetime import datetime
from typing import Any

from pydantic import Field

from venusrl.models._base import Answer


class Group(Answer):
    """The rollouts of one task."""

    id: str
    job_id: str
    attempt_id: str
    ordinal: int
    purpose: str
    environment: int = 0
    """Place in the spec: in `evaluation.environments` of an evaluation that has its own, else in
    `environments`."""
    task_id: str
    policy_version: int
    size: int
    open: int
    usable: int | None = None
    mean_reward: float | None = None
    disposition: str
    cause: str | None = None
    zero_variance: bool | None = None
    oldest_version: int | None = None
    step: int | None = None
    staleness: int | None = None
    created_at: datetime
    closed_at: datetime | None = None


class Try(Answer):
    """A try that ended; `counts` says that it used one of the job's tries."""

    number: int
    end: str
    cause: str
    counts: bool
    hop: int
    ended_at: datetime


class Hop(Answer):
    """A placement on an engine host; the measures are null while it runs or if its host died."""

    hop: int
    try_number: int
    host_id: str
    placed_at: datetime
    ended_at: datetime | None = None
    engine_s: float | None = None
    """Share of the host's busy time; the shares of a host add up to the time it was busy."""
    tool_wait_s: float | None = None
    """Share of the time in which the host stood still because tools ran."""


class Payload(Answer):
    """Name and sum of the stored tokens, rewards and advantages that the trainer read."""

    uri: str
    sha256: str


class Training(Answer):
    """Where a rollout's group stands in a batch. Without `committed_at` the step is being filled."""

    step: int
    position: int
    staleness: int
    payload: Payload | None = None
    committed_at: datetime | None = None
    weights_sha: str | None = None
    learning_rate: float | None = None
    diverged: bool | None = None


class GroupFate(Answer):
    """What became of the rollout's group."""

    id: str
    size: int
    usable: int | None = None
    zero_variance: bool | None = None
    mean_reward: float | None = None
    disposition: str
    cause: str | None = None
    graded_at: datetime | None = None


class Rollout(Answer):
    """One sampled episode."""

    id: str
    group_id: str
    job_id: str
    attempt_id: str
    index: int
    purpose: str
    environment: int = 0
    """Place in the spec, as of its group."""
    task_id: str
    current_try: int
    hop: int
    host_id: str | None = None
    end: str | None = None
    cause: str | None = None
    verdict: str | None = None
    reward: float | None = None
    unscorable_reason: str | None = None
    advantage: float | None = None
    disposition: str
    bucket: str
    """Where the bill puts the seconds spent on it."""
    turns: int
    tokens: int
    sampled_tokens: int
    oldest_version: int | None = None
    newest_version: int | None = None
    components: dict[str, Any] | None = None
    created_at: datetime
    closed_at: datetime | None = None


class RolloutDetail(Rollout):
    """One rollout with everything that happened to it, from its first try to the trainer's row."""

    tries: list[Try] = Field(default_factory=list)
    """Those that failed."""
    hops: list[Hop] = Field(default_factory=list)
    group: GroupFate
    training: Training | None = None
    reason: str
    """Why it was trained, evaluated or dropped, or what it waits for: one sentence."""


class Segment(Answer):
    """One append-only token sequence; the four vectors have one entry per token."""

    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]


class Trajectory(Answer):
    """The token record of a rollout."""

    rollout_id: str
    end: str
    cause: str | None = None
    segments: list[Segment]
    turns: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    rewrites: list[int] = Field(default_factory=list)
    """Places in `messages` where the environment began the conversation anew."""
    artefacts: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
