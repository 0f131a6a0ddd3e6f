"""Imperative intents of the core. The shell executes them in order; nothing is left to decide there.

A command that a failure of the outside prevents is answered by an event, never by an exception into
the core. Commands that write rows do so under the leader's term.
"""

from dataclasses import dataclass

from domain.ids import AttemptId, GroupId, HostId, JobId, RolloutId
from domain.policy import PolicyRef
from domain.states import DropReason, End, JobState, Purpose


@dataclass(frozen=True, slots=True)
class SetJobState:
    """Move a job; `observed_generation` answers the user's generation, reason and position are shown.

    `predicted_start` is when a waiting job will get its gang, on the clock of `step`; None with a
    reason where nobody can know.
    """

    job_id: JobId
    state: JobState
    observed_generation: int
    reason: str | None = None
    queue_position: int | None = None
    failure_code: str | None = None
    failure_component: str | None = None
    failure_hint: str | None = None
    retryable: bool = False
    predicted_start: float | None = None
    predicted_start_reason: str | None = None


@dataclass(frozen=True, slots=True)
class GrantGang:
    """Make desired rows for the attempt's trainer and engines, whole or not at all."""

    job_id: JobId
    attempt_id: AttemptId
    engines: int


@dataclass(frozen=True, slots=True)
class ReleaseGang:
    """Set the attempt's hosts to desired down and give its sandboxes back."""

    job_id: JobId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class ReplaceHost:
    """End this host's process with a cause; its keeper frees the lease and a new epoch follows."""

    host_id: HostId
    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Insert the group's and rollouts' rows (idempotent). Every rollout starts at try 1, hop 0.

    No engine older than `policy_version` gets the rollouts; for evaluation it is the evaluated step.
    """

    attempt_id: AttemptId
    group_id: GroupId
    ordinal: int
    purpose: Purpose
    size: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class ForkSandboxes:
    """Ask a node agent for the sandboxes of these (rollout, try) pairs of one group; idempotent."""

    group_id: GroupId
    node: HostId
    node_epoch: int
    members: tuple[tuple[RolloutId, int], ...]


@dataclass(frozen=True, slots=True)
class ReleaseSandboxes:
    """These tries are asked of another node, or held there: what this one has of them is given back.

    Sent after all forks of them to this node, so that none of these starts later.
    """

    node: HostId
    node_epoch: int
    members: tuple[tuple[RolloutId, int], ...]


@dataclass(frozen=True, slots=True)
class PlaceRollout:
    """Persist the raised hop, then hand the rollout to an engine host with its rank."""

    rollout_id: RolloutId
    try_: int
    hop: int
    host_id: HostId
    epoch: int
    node: HostId
    node_epoch: int
    rank: int
    kv_from: HostId | None = None
    """Engine host that may still hold the rollout's KV pages, to be fetched instead of computed."""


@dataclass(frozen=True, slots=True)
class SuspendRollout:
    """The placement with this hop is over between turns: the host lets the rollout go.

    Nothing is lost: the journal lives at the node agent. A `PlaceRollout` with a higher hop follows at
    once (migration) or later (a strategy that pauses rollouts). `keep_kv` asks the host to keep the
    pages until the next host has fetched them.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    host_id: HostId
    epoch: int
    keep_kv: bool = False


@dataclass(frozen=True, slots=True)
class SetRanks:
    """Tell an engine host new ranks; smaller runs first."""

    host_id: HostId
    epoch: int
    ranks: tuple[tuple[RolloutId, int], ...]


@dataclass(frozen=True, slots=True)
class EndTry:
    """Record a try's end and cause and, when `next_try` is set, raise the rollout to it (same hop).

    `counts` is False for a paused try: it counts neither against the limit nor as a failure. The
    old sandbox is released and the engine host, if any, forgets the try.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    end: End
    cause: str
    next_try: int | None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class CloseRollout:
    """Coordinator's own close (cancel, drop, tries exhausted); answered by RolloutClosed if it won."""

    rollout_id: RolloutId
    try_: int
    hop: int
    end: End
    cause: str


@dataclass(frozen=True, slots=True)
class GradeGroup:
    """Raise the grade epoch to this one and ask a node agent to grade the closed group.

    The same epoch again is a repetition after a resync: a grader that already answered answers again.
    """

    group_id: GroupId
    grade_epoch: int
    node: HostId
    node_epoch: int
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class DropGroup:
    """Write dropped(reason) on the group and on its members that are still pending."""

    group_id: GroupId
    reason: DropReason
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class AssignGroup:
    """Insert the batch_member row, freeze staleness, wake the trainer."""

    attempt_id: AttemptId
    step: int
    position: int
    group_id: GroupId
    staleness: int


@dataclass(frozen=True, slots=True)
class ReplaceMember:
    """Delete an assigned position before its step row exists and drop the group."""

    attempt_id: AttemptId
    step: int
    position: int
    group_id: GroupId
    reason: DropReason = DropReason.PAYLOAD_LOST


@dataclass(frozen=True, slots=True)
class CloseStep:
    """All positions of the step are assigned: the trainer finishes it."""

    attempt_id: AttemptId
    step: int


@dataclass(frozen=True, slots=True)
class SyncEngine:
    """Bring an engine to this policy; done when its probe matches."""

    host_id: HostId
    epoch: int
    policy: PolicyRef


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """Ask the trainer for a checkpoint of its last committed step."""

    attempt_id: AttemptId
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class FinishEvaluation:
    """All evaluation groups of this step are graded or closed: write the score."""

    attempt_id: AttemptId
    step: int


@dataclass(frozen=True, slots=True)
class NoteJob:
    """Append a job event for people: a stall with its blocked resource, a failed share, no signal."""

    job_id: JobId
    type: str
    body: tuple[tuple[str, str], ...]


Command = (
    SetJobState
    | GrantGang
    | ReleaseGang
    | ReplaceHost
    | OpenGroup
    | ForkSandboxes
    | ReleaseSandboxes
    | PlaceRollout
    | SuspendRollout
    | SetRanks
    | EndTry
    | CloseRollout
    | GradeGroup
    | DropGroup
    | AssignGroup
    | ReplaceMember
    | CloseStep
    | SyncEngine
    | WriteCheckpoint
    | FinishEvaluation
    | NoteJob
)
