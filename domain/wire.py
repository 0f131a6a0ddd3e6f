"""Bodies of the frames between leader, hosts and node agents that are not events already.

Frames are `{kind, version, body}`; `infra.codec` holds the registry. Payloads here are references
and small records: tokens of an open turn travel only between rollout host and node agent.
"""

from dataclasses import dataclass, field

from domain.events import HeldRollout, TurnFinished, TurnSampled
from domain.ids import AttemptId, GroupId, HostId, RolloutId
from domain.policy import PolicyRef
from domain.sandbox import ForkMember, NodeRoom, SandboxLimits
from domain.states import HostKind, Purpose


@dataclass(frozen=True, slots=True)
class Hello:
    """Host to leader: who I am and a fresh nonce."""

    host_id: HostId
    epoch: int
    term: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge:
    """Leader to host: its term, its nonce and its proof over both nonces with the leader's key."""

    term: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """Host to leader: HMAC over both nonces, host, epoch and term with the host key."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side refused; the connection ends after it."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class HostSnapshot:
    """All that a host holds, sent after each dial."""

    host_id: HostId
    epoch: int
    kind: HostKind
    attempt_id: AttemptId | None
    slots: int
    held: tuple[HeldRollout, ...] = ()
    policy_version: int = -1
    data_address: str = ""
    """host:port where a node agent serves rollout hosts, and an engine hands out pages; else empty."""
    data_key: str = ""
    """Key that the leader hands to rollout hosts with a placement; of an engine, what it makes keys
    to single departures from."""
    sandboxes: tuple[str, ...] = ()
    """Rollout tries that a node agent holds, as `rollout_id/try`."""
    starting: tuple[str, ...] = ()
    """Tries whose sandbox it makes now, the same way."""
    room: NodeRoom | None = None
    """A node agent's account of its memory."""
    kv_tokens: int = 0
    """Tokens that an engine's device tier holds; 0 where it cannot be said in tokens."""
    may_migrate: bool = False
    """Whether an engine hands out and takes in pages of rollouts, between turns."""


@dataclass(frozen=True, slots=True)
class LeaderBeat:
    """Leader heartbeat; a host looks at `leadership` when they stop."""

    term: int


@dataclass(frozen=True, slots=True)
class HostBeat:
    """Host heartbeat with its figures for metrics; also says that its event loop lives."""

    figures: dict[str, float] = field(default_factory=dict)
    phases: dict[RolloutId, str] = field(default_factory=dict)
    """Engine hosts: what rollouts do that changed since the last beat of this connection, a
    `domain.schedule.WaitReason` each; empty text for one that is no longer held."""


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where a placement's pages may be fetched: of the one with `hop`, which is over, until `expires`.

    `key` proves to the host at `address` that the leader sent whoever asks, and that host to it.
    """

    address: str
    hop: int
    expires: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Run this try on this engine host. `sampling` and limits come from the job's spec."""

    rollout_id: RolloutId
    group_id: GroupId
    try_: int
    hop: int
    rank: int
    seed: int
    evaluation: bool
    pinned_version: int
    """Version that an evaluation rollout must be sampled under; -1 for training."""
    node_address: str
    node_key: str
    task_json: str
    environment: int = 0
    """Place of its environment among those of its purpose, in the spec's order."""
    kv: KvSource | None = None
    """Who may still hold the pages; without it, or when it fails, they are computed."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """New ranks, smaller first."""

    ranks: tuple[tuple[RolloutId, int], ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """The rollout's placement at this hop or below is void: abort and forget it."""

    rollout_id: RolloutId
    hop: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """The placement with this hop is over between turns: let the rollout go, abort what it still runs.

    `keep_kv`: its pages stay for a while, for the engine that fetches them or for its return.
    """

    rollout_id: RolloutId
    hop: int
    keep_kv: bool


@dataclass(frozen=True, slots=True)
class TurnReports:
    """What turns of a host's rollouts did lately; at most the newest of each kind for a rollout.

    A rollout's finished turn is older than its sampled one: a sampled turn that has finished since is
    left out.
    """

    finished: tuple[TurnFinished, ...]
    sampled: tuple[TurnSampled, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """Load this policy, pause-keep, probe, resume."""

    policy: PolicyRef


@dataclass(frozen=True, slots=True)
class Wake:
    """Work may be waiting in Postgres; the trainer looks at its batch members."""

    step: int


@dataclass(frozen=True, slots=True)
class Finish:
    """All positions of the step are assigned: finish it."""

    step: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write a checkpoint of the last committed step."""

    step: int
    reason: str
    next_ordinal: int
    unconsumed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fork:
    """Hold sandbox (or bare journal) and environment instance for these tries of one group."""

    attempt_id: AttemptId
    group_id: GroupId
    members: tuple[ForkMember, ...]
    environment_version_id: str
    package_uri: str
    package_sha: str
    config_json: str
    task_json: str
    limits: SandboxLimits
    """Ceilings of each member's sandbox."""


@dataclass(frozen=True, slots=True)
class ForkRefused:
    """The node agent cannot hold these tries now; the cause names the limit. The leader retries."""

    group_id: GroupId
    members: tuple[tuple[RolloutId, int], ...]
    cause: str
    transient: bool


@dataclass(frozen=True, slots=True)
class Release:
    """Destroy what this rollout holds up to this try; idempotent."""

    rollout_id: RolloutId
    try_: int


@dataclass(frozen=True, slots=True)
class ReleaseAttempt:
    """Destroy everything of the attempt: sandboxes, environment processes, journals."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class Grade:
    """Grade a closed group: everything else is read from Postgres and the object store.

    `purpose` orders those that wait: a batch may need a training group, nothing an evaluation.
    """

    group_id: GroupId
    grade_epoch: int
    purpose: Purpose = Purpose.TRAIN


# Rollout host <-> node agent


@dataclass(frozen=True, slots=True)
class AgentHello:
    """Rollout host to node agent: proof of the data key over the agent's nonce."""

    host_id: HostId
    epoch: int
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class JournalTurn:
    """One journalled turn. `messages` is None while its reply has not been recorded.

    `messages` are the environment's reply as JSON objects; `done` says that the episode ended;
    `is_rewrite` that they are the whole conversation from here on.
    """

    turn: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    replied: bool
    messages: tuple[dict[str, object], ...]
    done: bool
    tool_s: float
    is_rewrite: bool = False


@dataclass(frozen=True, slots=True)
class Attach:
    """Raise the agent's hop for this try and return the journal, in one operation."""

    request: int
    rollout_id: RolloutId
    try_: int
    hop: int


@dataclass(frozen=True, slots=True)
class Attached:
    """The journal: the opening messages of the task and every turn so far."""

    request: int
    opening: tuple[dict[str, object], ...]
    turns: tuple[JournalTurn, ...]
    tools: tuple[dict[str, object], ...] = ()
    """Schemas of the environment's tools, for chat formats that write them into the prompt."""


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Journal the intent, run the environment's reply once, answer with the observation.

    `assistant` is the parsed assistant message (content, tool calls with parse errors).
    """

    request: int
    rollout_id: RolloutId
    try_: int
    hop: int
    turn: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    assistant: dict[str, object]


@dataclass(frozen=True, slots=True)
class TurnReply:
    """The observation of a turn."""

    request: int
    turn: JournalTurn


@dataclass(frozen=True, slots=True)
class Seal:
    """The rollout ended naturally: seal the journal, return artefacts, release the sandbox."""

    request: int
    rollout_id: RolloutId
    try_: int
    hop: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """Small text artefacts of the agent's sandbox, by name, and environment metrics."""

    request: int
    artefacts: dict[str, str]
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class AgentRefused:
    """The agent refused a request: `hop` (superseded), `unknown` (no such try), or a failed try.

    For `env_failed` and `sandbox_lost` the try is over with that end.
    """

    request: int
    code: str
    cause: str
