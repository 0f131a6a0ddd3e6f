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
    task_id: str
    policy_version: int
    size: int
    open: int
    usable: int | None = None
    mean_reward: float | None = None
    disposition: str
    step: int | None = None
    staleness: int | None = None
    created_at: datetime


class Try(Answer):
    """A try that ended for an infrastructure reason or a pause."""

    number: int
    end: str
    cause: str
    counts: bool


class Rollout(Answer):
    """One sampled episode."""

    id: str
    group_id: str
    job_id: str
    index: int
    purpose: str
    task_id: str
    current_try: int
    hop: int
    end: str | None = None
    cause: str | None = None
    verdict: str | None = None
    reward: float | None = None
    unscorable_reason: str | None = None
    advantage: float | None = None
    disposition: str
    turns: int
    tokens: int
    sampled_tokens: int
    oldest_version: int | None = None
    newest_version: int | None = None
    components: dict[str, Any] | None = None
    tries: list[Try] = Field(default_factory=list)
    created_at: datetime


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
    artefacts: dict[str, str] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)
