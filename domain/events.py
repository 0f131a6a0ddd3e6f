"""Past-tense facts that the coordinator's core folds in. Identity fields let `accept` refuse late ones.

Facts of rollouts carry (try, hop); facts of hosts carry the epoch; facts of groups carry the grade
epoch where a grader could be late.
"""

from dataclasses import dataclass, field

from domain.ids import AttemptId, CheckpointId, GroupId, HostId, JobId, RolloutId
from domain.plan import JobLimits, JobPlan
from domain.policy import PolicyRef
from domain.sandbox import NodeRoom
from domain.states import Desired, End, HostKind, JobState, Purpose


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """The leader saw a job whose wanted attempt it does not run yet.

    `next_ordinal` and `unconsumed` are the data position: of the checkpoint for a restart, 0 and
    empty for a new job. `base_step` is the step of the checkpoint that the attempt starts from: steps
    and policy versions of the attempt go on from it (its start policy has version `base_step`, its
    first step is `base_step + 1`), and `plan.max_steps` is the last step counted the same way.
    """

    plan: JobPlan
    generation: int
    base_step: int = 0
    next_ordinal: int = 0
    unconsumed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DesiredChanged:
    """The user asked for pause, cancel or (after a pause) run, or changed limits; level-triggered by
    generation.

    `is_wish` is False when only limits changed: a pause that the core itself decided stays.
    """

    job_id: JobId
    desired: Desired
    generation: int
    limits: JobLimits | None = None
    is_wish: bool = True


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The job used up a limit of its budget; told again for as long as that is so."""

    job_id: JobId
    reason: str


@dataclass(frozen=True, slots=True)
class HeldRollout:
    """A rollout that an engine host reports to hold in its snapshot."""

    rollout_id: RolloutId
    try_: int
    hop: int
    turn: int
    oldest_version: int | None = None
    """Version of its oldest token, if it has one; a new leader knows it from nowhere else."""
    tokens: int = 0
    """Length of its context; what it would hold in KV."""
    is_starting: bool = False
    """A node makes its sandbox and will answer; nobody may ask another node meanwhile."""


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A host proved itself and sent its snapshot. Joining again with the same epoch is a resync.

    `held` of an engine: rollouts placed on it; of a node: the tries whose sandbox or journal it holds.
    """

    host_id: HostId
    epoch: int
    kind: HostKind
    attempt_id: AttemptId | None
    slots: int
    held: tuple[HeldRollout, ...] = ()
    policy_version: int = -1
    """Version that an engine serves; -1 when it is no engine or has no weights yet."""
    kv_tokens: int = 0
    """Tokens that an engine's device tier holds; 0 when unknown: its pressure is then never computed."""
    may_migrate: bool = False
    """Whether the engine lets rollouts go to other engines, and takes theirs, between turns."""
    room: NodeRoom | None = None
    """A node's account as it joins: nothing is sent to it by counts before it said its room."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """The lease of a host expired or its keeper ended it. Nothing of that epoch counts any more."""

    host_id: HostId
    epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A node's account as it stands; told when it changed, and now and then.

    It holds every try whose `SandboxReady` the node sent before it.
    """

    host_id: HostId
    epoch: int
    room: NodeRoom


@dataclass(frozen=True, slots=True)
class ForksDeclined:
    """A node had no room for these tries and does not hold them. `rule`, `needed` and `available` as the
    node said (`infra.pool_frames.RoomRefused`)."""

    node: HostId
    node_epoch: int
    group_id: GroupId
    members: tuple[tuple[RolloutId, int], ...]
    rule: str
    needed: float
    available: float


@dataclass(frozen=True, slots=True)
class SandboxReady:
    """A node agent holds the sandbox (or the bare journal) of a rollout's try."""

    rollout_id: RolloutId
    try_: int
    node: HostId
    node_epoch: int
    task: int | None = None
    """Number of the training task that it works on, equal in all groups of one task; the leader adds it."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """A learned estimate of what a rollout still needs until its end (`scheduling.md` section 7).

    `tokens` to sample (median) and `tokens_q90`, `tool_s` seconds of tools, `turns` to come.
    """

    tokens: float
    tokens_q90: float
    tool_s: float
    turns: float


@dataclass(frozen=True, slots=True)
class TurnSampled:
    """The generation of a turn ended and its reply runs: a tool gap. Advisory, a lost one costs nothing.

    `turn` is the number of the turn that is open, 1-based; `tokens` is the context so far, of which
    `shared_tokens` are the prefix that all members of the group have; `expected_tool_s` is what the
    tool's own history says of the gap.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    turn: int
    tokens: int
    expected_tool_s: float
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn ended and the rollout goes on. Token counts are of the whole rollout so far."""

    rollout_id: RolloutId
    try_: int
    hop: int
    turn: int
    tokens: int
    sampled_tokens: int
    oldest_version: int
    tool_s: float
    shared_tokens: int = 0
    """Of `tokens`, the prefix that all members of the group have."""
    remaining: Remaining | None = None
    """A learned estimate; None leaves it to the job's history."""


@dataclass(frozen=True, slots=True)
class TryFailed:
    """A try ended for an infrastructure reason; the rollout itself is still open.

    `end` is one of `INFRASTRUCTURE_ENDS`; `cause` is for people and the ledger.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    end: End
    cause: str


@dataclass(frozen=True, slots=True)
class RolloutClosed:
    """The host closed the rollout by compare-and-set, or the coordinator's own close took effect."""

    rollout_id: RolloutId
    try_: int
    hop: int
    end: End
    oldest_version: int | None
    newest_version: int | None
    tokens: int
    sampled_tokens: int
    turns: int
    reread: bool = False
    """The leader read it from the row itself (a command met a closed row): never refused as late."""


@dataclass(frozen=True, slots=True)
class GroupGraded:
    """Verdicts and advantages of a closed group are committed.

    `usable` counts the scored members, `zero_variance` says that no advantage differs from zero,
    `oldest_version` is the oldest token's version among the usable members.
    """

    group_id: GroupId
    grade_epoch: int
    usable: int
    zero_variance: bool
    oldest_version: int | None
    mean_reward: float | None
    reread: bool = False
    """The leader read it from the row itself (a command met a graded row): never refused as late."""


@dataclass(frozen=True, slots=True)
class GradeFailed:
    """The grader could not finish; it is retried, then the group is unscorable, never zero."""

    group_id: GroupId
    grade_epoch: int
    cause: str


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """The trainer restored its state; `policy.version` is the last committed step of the attempt.

    Sent after every dial of a restored trainer, so that a lost `StepCommitted` is made good.
    """

    attempt_id: AttemptId
    host_id: HostId
    epoch: int
    policy: PolicyRef


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step row is durable. `diverged` steps carry unchanged weights and drop their groups."""

    attempt_id: AttemptId
    step: int
    policy: PolicyRef
    diverged: bool = False


@dataclass(frozen=True, slots=True)
class TrainerFailed:
    """The trainer stops for a reason that a new host would meet again (divergence, bad model)."""

    attempt_id: AttemptId
    code: str
    cause: str


@dataclass(frozen=True, slots=True)
class PayloadLost:
    """An assigned group's payload cannot be read; its position must be filled anew."""

    attempt_id: AttemptId
    step: int
    group_id: GroupId
    cause: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A checkpoint was written and read back whole."""

    attempt_id: AttemptId
    step: int
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class EvaluationScored:
    """The row of a finished evaluation is written; `selected` is what the job's target is held to."""

    attempt_id: AttemptId
    step: int
    selected: float | None


@dataclass(frozen=True, slots=True)
class EngineSynced:
    """An engine serves this version and its probe matched the trainer."""

    host_id: HostId
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class EngineSyncFailed:
    """A sync failed or its probe did not match; the engine still serves the former version."""

    host_id: HostId
    epoch: int
    version: int
    cause: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; the only event that exists for the clock's sake (back-off, watchdog, drain)."""


@dataclass(frozen=True, slots=True)
class RestoredRollout:
    """A rollout as Postgres has it at a leader's start."""

    rollout_id: RolloutId
    try_: int
    hop: int
    failed_tries: int
    """Tries that count against the limit (a paused try does not)."""
    closed_end: End | None
    tokens: int = 0
    sampled_tokens: int = 0
    turns: int = 0
    oldest_version: int | None = None
    host_id: HostId | None = None
    """Engine host of the placement with this hop; None when it was never placed or is unknown."""


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    """A group as Postgres has it at a leader's start; dropped and trained groups are not listed."""

    group_id: GroupId
    purpose: Purpose
    size: int
    created_at: float
    policy_version: int
    """Oldest version that a training group may be sampled with; for evaluation the evaluated step."""
    grade_epoch: int
    rollouts: tuple[RestoredRollout, ...]
    closed: bool
    graded: GroupGraded | None
    assigned_step: int | None
    assigned_position: int | None
    task: int | None = None
    """As in `SandboxReady`."""


@dataclass(frozen=True, slots=True)
class RestoredHost:
    """A lease row as Postgres has it at a leader's start."""

    host_id: HostId
    epoch: int
    kind: HostKind
    attempt_id: AttemptId | None
    claimed: bool
    """Held by a keeper now: it will join or its lease will expire."""
    job_id: JobId | None = None


@dataclass(frozen=True, slots=True)
class RestoredJob:
    """An active job as Postgres has it at a leader's start.

    `generation` and `desired` are the user's; when `generation` is above `observed_generation`, the
    wish is new to the core. `next_ordinal` is above every training ordinal issued so far.
    """

    plan: JobPlan
    generation: int
    desired: Desired
    state: JobState
    base_step: int
    committed_step: int
    policy: PolicyRef | None
    next_ordinal: int
    unconsumed: tuple[int, ...]
    """Ordinals of the start checkpoint that this attempt has not issued again (it has no group row)."""
    groups: tuple[RestoredGroup, ...]
    checkpoint_step: int | None
    evaluated_steps: tuple[int, ...]
    recent_drops: tuple[str, ...] = ()
    observed_generation: int | None = None
    """None means equal to `generation`."""
    reason: str | None = None
    issued_evaluations: tuple[int, ...] = ()
    """Ordinals of all evaluation groups opened so far, dropped and evaluated ones included."""
    wished_generation: int | None = None
    """Generation of the last pause, resume or cancel; later ones only changed limits. None: the last."""
    reached_step: int | None = None
    """The first evaluated step whose selected number reached the plan's target."""
    policies: tuple[PolicyRef, ...] = ()
    """Of all committed steps, the start included: evaluations that wait or run are pinned to some."""


@dataclass(frozen=True, slots=True)
class StateRestored:
    """A new leader read Postgres. First event of each term; hosts join afterwards."""

    jobs: tuple[RestoredJob, ...] = field(default=())
    hosts: tuple[RestoredHost, ...] = field(default=())


Event = (
    StateRestored
    | JobSubmitted
    | DesiredChanged
    | BudgetSpent
    | HostJoined
    | HostLost
    | NodeReported
    | ForksDeclined
    | SandboxReady
    | TurnSampled
    | TurnFinished
    | TryFailed
    | RolloutClosed
    | GroupGraded
    | GradeFailed
    | TrainerReady
    | StepCommitted
    | TrainerFailed
    | PayloadLost
    | CheckpointWritten
    | EvaluationScored
    | EngineSynced
    | EngineSyncFailed
    | Tick
)
