"""Closed sets and legal moves: job states, rollout ends, verdicts, dispositions, host kinds."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """Public state of a job."""

    VALIDATING = "validating"
    QUEUED = "queued"
    PROVISIONING = "provisioning"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

LEGAL_MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.VALIDATING: frozenset({JobState.QUEUED, JobState.FAILED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset(
        {JobState.PROVISIONING, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED}
    ),
    JobState.PROVISIONING: frozenset(
        {JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING, JobState.FAILED, JobState.QUEUED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.PAUSING, JobState.CANCELLING, JobState.FAILED}
    ),
    JobState.PAUSING: frozenset(
        {JobState.PAUSED, JobState.CANCELLING, JobState.FAILED, JobState.SUCCEEDED}
    ),
    JobState.PAUSED: frozenset({JobState.RESUMING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RESUMING: frozenset(
        {JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING, JobState.FAILED}
    ),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
}
"""A terminal job returns to `queued` only by a restart, which makes a new attempt."""


def move(current: JobState, target: JobState) -> JobState:
    """Return `target` if the move is legal; an illegal move is a programmer error and raises."""
    assert target in LEGAL_MOVES[current], f"illegal job move {current} -> {target}"
    return target


class Desired(StrEnum):
    """What the user wants of a job; written by the API together with a raised generation."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class HostKind(StrEnum):
    """What a host process is."""

    ENGINE = "engine"
    TRAINER = "trainer"
    NODE = "node"


class Purpose(StrEnum):
    """Why a group exists."""

    TRAIN = "train"
    EVALUATION = "evaluation"


class End(StrEnum):
    """How a rollout, or one try of it, stopped."""

    DONE = "done"
    TRUNCATED = "truncated"
    TURN_LIMIT = "turn_limit"
    CONTEXT_OVERFLOW = "context_overflow"
    TIMEOUT = "timeout"
    ENV_FAILED = "env_failed"
    SANDBOX_LOST = "sandbox_lost"
    ENGINE_LOST = "engine_lost"
    CANCELLED = "cancelled"


INFRASTRUCTURE_ENDS: Final = frozenset({End.ENV_FAILED, End.SANDBOX_LOST, End.ENGINE_LOST})
"""Ends that start the next try; they are never a reward and never billed."""


class DropReason(StrEnum):
    """Why a group or a rollout was not trained."""

    ZERO_VARIANCE = "zero_variance"
    STALE = "stale"
    UNSALVAGEABLE = "unsalvageable"
    UNSCORABLE = "unscorable"
    SHRUNK = "shrunk"
    PAYLOAD_LOST = "payload_lost"
    DIVERGED = "diverged"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict with a finite value."""

    value: float


@dataclass(frozen=True, slots=True)
class Unscorable:
    """A verdict without a value; the rollout is never trained as a zero."""

    reason: str


Verdict = Scored | Unscorable

PENDING: Final = "pending"
"""Disposition of a rollout whose fate is open."""


def trained(step: int) -> str:
    """Stored form of the disposition trained(step)."""
    return f"trained({step})"


def evaluated(step: int) -> str:
    """Stored form of the disposition evaluated(step)."""
    return f"evaluated({step})"


def dropped(reason: DropReason) -> str:
    """Stored form of the disposition dropped(reason)."""
    return f"dropped({reason.value})"
