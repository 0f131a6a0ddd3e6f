"""What a job's environments printed, line by line, and where the time of a rollout went."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from venusrl.models._base import Answer

Component = Literal["environment", "grader"]


class LogLine(Answer):
    """One line. `environment`: user code of a try, or its process; `grader`: its rewards."""

    id: str
    """Goes into `after` of a request that goes on behind this line."""
    at: datetime
    component: Component
    attempt_id: str
    host_id: str
    rollout_id: str | None = None
    """Null: the environment's process printed it for no rollout in particular."""
    try_number: int | None = None
    text: str
    lost_before: int = 0
    """Earlier lines that the bound on one output did not keep; said at its first line."""


SpanName = Literal[
    "wait_for_sandbox",
    "sandbox",
    "placement",
    "generate",
    "tool",
    "unattributed",
    "wait_for_grading",
    "grader_sandbox",
    "wait_for_batch",
]


class Span(Answer):
    """A stretch of a rollout's time. Null times: only its length was measured."""

    name: SpanName
    try_number: int | None = None
    hop: int | None = None
    turn: int | None = None
    host_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    """Null: it is still going on, or its host died with the measure."""


class Spans(Answer):
    """Where the time of a rollout went, in order: its tries, then grading, then its batch."""

    rollout_id: str
    spans: list[Span]
    not_measured: list[str] = Field(default_factory=list)
    """What these spans do not tell apart, in words."""
