"""The soft state that the core folds events into: jobs, groups, rollouts, hosts.

Everything here can be rebuilt from `StateRestored` and from what hosts report when they join. The
records are plain data; the rules that change them live in the module named after each rule.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.events import Remaining
from domain.ids import AttemptId, GroupId, HostId, RolloutId
from domain.plan import JobPlan
from domain.policy import PolicyRef
from domain.states import INFRASTRUCTURE_ENDS, Desired, End, HostKind, JobState, Purpose
from sandboxes.core.names import PlacementId
from scheduler.core.forecast import NO_START, Pace, Start
from scheduler.core.history import History
from scheduler.core.rules import Rules

LOST_ENDS: Final = INFRASTRUCTURE_ENDS | {End.CANCELLED}
"""Ends whose rollouts have no trajectory that could be trained or scored."""


Entry = tuple[float, int, GroupId]
"""Key of an unfinished training group in the job's order: estimate, ordinal, id."""


class SandboxState(StrEnum):
    """What the core knows about the sandbox of a rollout's current try."""

    WANTED = "wanted"
    ASKED = "asked"
    READY = "ready"
    UNKNOWN = "unknown"


class GroupPhase(StrEnum):
    """Where a live group stands; dropped and trained groups leave the state."""

    OPEN = "open"
    CLOSED = "closed"
    GRADING = "grading"
    COMPLETE = "complete"
    ASSIGNED = "assigned"


class HostState(StrEnum):
    """What the core knows about a host; `expected` is a restored lease whose fate is open."""

    EXPECTED = "expected"
    JOINED = "joined"
    REPLACING = "replacing"


@dataclass(slots=True, eq=False)
class RolloutRecord:
    """One member of a group. `host` is set exactly while the rollout is placed on an engine host."""

    rollout_id: RolloutId
    index: int
    try_: int = 1
    hop: int = 0
    failed_tries: int = 0
    engine_losses: int = 0
    sandbox: SandboxState = SandboxState.WANTED
    node: HostId | None = None
    """Node of the current try's sandbox; None while it has none, or nobody knows where."""
    part: PlacementId | None = None
    """What holds its room on that node (`node_rooms.py`); None where nobody counts it."""
    host: HostId | None = None
    expected_on: HostId | None = None
    """Restored placement whose host has neither joined nor been lost yet."""
    is_unclaimed: bool = False
    """Restored with a raised hop but without a named host: any engine of the attempt may hold it."""
    turn: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    tool_s: float = 0.0
    oldest_version: int | None = None
    end: End | None = None
    is_closing: bool = False
    """The core has sent its own close and waits for the answer; the rollout holds nothing."""
    not_before: float = 0.0
    asked_at: float = 0.0
    progress_at: float = 0.0
    rank: int = 0
    gap_since: float | None = None
    """When the tool that runs now began; None while it waits or generates."""
    expected_tool_s: float = 0.0
    remaining: Remaining | None = None
    """The newest learned estimate."""
    is_suspended: bool = False
    """On no engine by the strategy's decision; it waits in `ready` until the strategy lets it go on."""
    kv_from: HostId | None = None
    """Engine host that still holds its pages after a suspension."""

    @property
    def is_open(self) -> bool:
        """No close has been seen."""
        return self.end is None

    @property
    def is_lost(self) -> bool:
        """Ended without a trajectory that could count."""
        return self.end in LOST_ENDS


@dataclass(slots=True, eq=False)
class GroupRecord:
    """The rollouts of one task. `roster.py` alone adds and removes groups and changes their `phase`.

    `policy_version` is the oldest version that its next tokens may be sampled with; it never falls.
    """

    group_id: GroupId
    ordinal: int
    purpose: Purpose
    size: int
    policy_version: int
    opened_at: float
    opened_at_step: int
    rollouts: list[RolloutRecord]
    phase: GroupPhase = GroupPhase.OPEN
    task: int | None = None
    """Number of its task (`SandboxReady.task`); None until it is told."""
    node: HostId | None = None
    """Its home. Some members are elsewhere when no node takes all (`spots.py`)."""
    held_on: dict[HostId, int] = field(default_factory=dict)
    """Sandboxes that its members hold on each node."""
    refused_at: dict[HostId, float] = field(default_factory=dict)
    """When a node last had no room for members that it was asked for."""
    engine: HostId | None = None
    grade_epoch: int = 0
    grade_failures: int = 0
    grade_node: HostId | None = None
    grade_asked_at: float = 0.0
    usable: int = 0
    oldest_version: int | None = None
    mean_reward: float | None = None
    position: int | None = None
    staleness: int = 0
    is_critical: bool = False
    completed_as: int = 0
    """Its place among the job's completed groups."""
    shared_tokens: int = 0
    """Length of the prefix that all members have."""
    members_on: dict[HostId, int] = field(default_factory=dict)
    """Members placed on each engine host: the shared prefix is charged once there."""
    is_estimated: bool = False
    """Restored while open: versions of its members' tokens are unknown until they are reported."""
    progress_at: float = 0.0
    last_valid: int = 0
    """Last step that it may enter; `roster.note_versions` keeps it."""
    is_aged: bool = False
    """Unfinished for so many batches that it is critical whatever its estimate."""
    is_chosen: bool = False
    """Among the first `need` in the order."""
    grain: int = 0
    """Its estimate in the steps that orders tell apart (`order.grain_of`)."""
    rank_class: int = -1
    value: int = 0
    """What its members' ranks were last composed with."""
    entry: Entry | None = None
    """Its key in `Roster.critical` or `Roster.normal`."""
    place: tuple[int, tuple[float, int], GroupId] | None = None
    """Its key in `Roster.waiting`."""

    @property
    def is_training(self) -> bool:
        """Counts for pacing, need and batches."""
        return self.purpose is Purpose.TRAIN

    @property
    def is_unfinished(self) -> bool:
        """Not complete yet: rollouts or verdicts are missing."""
        return self.phase in (GroupPhase.OPEN, GroupPhase.CLOSED, GroupPhase.GRADING)

    def open_rollouts(self) -> list[RolloutRecord]:
        """Members without an end, in index order."""
        return [rollout for rollout in self.rollouts if rollout.is_open]

    def oldest_known_version(self) -> int | None:
        """Version of the oldest token that was reported."""
        if self.oldest_version is not None:
            return self.oldest_version
        known = [r.oldest_version for r in self.rollouts if not r.is_lost]
        return min((version for version in known if version is not None), default=None)

    def oldest_possible_version(self) -> int:
        """Version of the oldest token that the group has or may still get."""
        if self.oldest_version is not None:
            return self.oldest_version
        known = [
            self.policy_version if rollout.oldest_version is None else rollout.oldest_version
            for rollout in self.rollouts
            if not rollout.is_lost
        ]
        return min(known, default=self.policy_version)


@dataclass(slots=True)
class Roster:
    """Live groups of a job by what is asked of them. The records are the truth, these only find them.

    `roster.py` and `order.py` keep it; `invariants.py` derives all of it anew and compares.
    """

    training: int = 0
    """Live training groups."""
    unfinished: int = 0
    """Of them, those that are not complete."""
    evaluating: dict[GroupId, GroupRecord] = field(default_factory=dict)
    """Live evaluation groups."""
    closed: dict[GroupId, GroupRecord] = field(default_factory=dict)
    """Groups whose grading nobody has been asked for."""
    grading: dict[GroupId, GroupRecord] = field(default_factory=dict)
    """Groups with a grader, in the order in which it was asked."""
    waiting: list[tuple[int, tuple[float, int], GroupId]] = field(default_factory=list)
    """Complete training groups without a position, in the order in which they take one."""
    due: dict[int, dict[GroupId, GroupRecord]] = field(default_factory=dict)
    """Training groups without a position, by last valid step."""
    young: dict[int, dict[GroupId, GroupRecord]] = field(default_factory=dict)
    """Unfinished training groups that are not aged, by the step they were opened at."""
    critical: list[Entry] = field(default_factory=list)
    """The first `need` unfinished training groups in the job's order."""
    normal: list[Entry] = field(default_factory=list)
    """The other unfinished ones, in the job's order."""
    unranked: dict[GroupId, None] = field(default_factory=dict)
    """Groups whose class or value changed since their members were ranked."""


@dataclass(slots=True, eq=False)
class HostRecord:
    """One host process of the current epoch."""

    host_id: HostId
    epoch: int
    kind: HostKind
    attempt_id: AttemptId | None
    state: HostState
    slots: int = 0
    version: int = -1
    load: int = 0
    """Engine: rollouts placed on it. Node: sandboxes asked of it."""
    kv_tokens: int = 0
    """Engine: tokens that its device tier holds; 0 when unknown."""
    kv_held: int = 0
    """Engine: context tokens of the rollouts placed on it, shared prefixes once (`holdings.py`)."""
    may_migrate: bool = False
    syncing: int | None = None
    sync_asked_at: float = 0.0
    sync_failures: int = 0
    is_ready: bool = False
    """Trainer: it restored its state and takes groups."""

    @property
    def is_live(self) -> bool:
        """Joined and not being replaced."""
        return self.state is HostState.JOINED


@dataclass(frozen=True, slots=True)
class Lack:
    """What no node had enough of for the next sandboxes of a job, as of `at`."""

    resource: str
    needed: float
    available: float
    at: float
    members: int
    """That wanted to start together."""


@dataclass(slots=True)
class Gang:
    """What an attempt holds of the pool."""

    engines: int
    sandboxes: int
    """Guaranteed; a job may borrow more while nobody within its guarantee waits."""


@dataclass(slots=True)
class EvaluationRun:
    """One held-out evaluation of one policy version."""

    step: int
    policy: PolicyRef | None
    opened: int = 0
    deferring_since: float | None = None
    """When the first engine sync began to wait for this evaluation."""
    is_abandoned: bool = False


@dataclass(slots=True)
class Checkpointing:
    """Newest checkpoint, and the one that is asked for."""

    written_step: int | None = None
    asked_step: int | None = None


@dataclass(slots=True)
class Signal:
    """Run of graded training groups without reward variance."""

    flat_groups: list[GroupId] = field(default_factory=list)
    is_waiting: bool = False
    probe_after: float = 0.0


@dataclass(slots=True, eq=False)
class JobRecord:
    """One active job: at most one attempt of a job is active."""

    plan: JobPlan
    generation: int
    desired: Desired
    state: JobState
    arrival: int
    """Order in which jobs wait for a gang."""
    base_step: int
    committed: int
    next_ordinal: int
    unconsumed: deque[int]
    """Ordinals of the checkpoint that this attempt has not issued yet, ascending."""
    returned: list[int] = field(default_factory=list)
    """Ordinals whose groups were dropped without being consumed."""
    policy: PolicyRef | None = None
    groups: dict[GroupId, GroupRecord] = field(default_factory=dict)
    roster: Roster = field(default_factory=Roster)
    positions: dict[int, GroupId] = field(default_factory=dict)
    """Filled positions of the step being filled."""
    free_from: int = 0
    """No position below this one is free."""
    is_closing_step: bool = False
    sandboxes: int = 0
    """Sandboxes that its rollouts hold (`holdings.py` keeps it)."""
    wanting: dict[RolloutId, None] = field(default_factory=dict)
    """Open rollouts whose current try has no sandbox yet."""
    ready: dict[RolloutId, None] = field(default_factory=dict)
    """Open rollouts with a sandbox that are on no engine host and wait for a place."""
    asked: dict[RolloutId, None] = field(default_factory=dict)
    """Rollouts whose fork a node has not answered, in the order in which it was asked."""
    lack: Lack | None = None
    """Why its next sandboxes are on no node yet."""
    gang: Gang | None = None
    epochs: dict[HostId, int] = field(default_factory=dict)
    """Highest epoch seen of each attempt-bound host, kept over a pause."""
    lost_epochs: dict[HostId, int] = field(default_factory=dict)
    """Highest epoch that was lost: nothing of it or below may join again."""
    unsettled: dict[RolloutId, None] = field(default_factory=dict)
    """Restored rollouts whose sandbox or placement waits for a host's snapshot or loss."""
    evaluations: list[EvaluationRun] = field(default_factory=list)
    evaluated: set[int] = field(default_factory=set)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    signal: Signal = field(default_factory=Signal)
    tries: deque[str | None] = field(default_factory=deque)
    """Outcome of the last tries over three batches: why one failed, None where it did not."""
    failed_tries: int = 0
    failed_in_row: int = 0
    """Failed tries since the last that did not fail."""
    probe_after: float = 0.0
    """Once a whole batch of tries failed in a row, no training group opens before this time."""
    history: History = field(default_factory=History)
    completed_groups: int = 0
    trainer_losses: int = 0
    engine_losses: int = 0
    pause_wanted: str | None = None
    """The core's own reason to pause; the user's wish to run ends it."""
    reached_step: int | None = None
    """Evaluated step that reached the plan's target: the job ends with what is committed."""
    reason: str | None = None
    queue_position: int | None = None
    start: Start = NO_START
    """When it will get its gang, while it waits for one."""
    pace: Pace = field(default_factory=Pace)
    said_generation: int = -1
    """Generation of the last shown state."""
    draining_since: float = 0.0
    is_drained: bool = False
    blocked: str | None = None
    blocked_noted_at: float = 0.0
    progress_at: float = 0.0
    ranks_are_old: bool = True
    """The critical set and all ranks are made anew; what concerns one group marks it `unranked`."""
    batch_is_old: bool = True
    """A group completed, left or changed its last valid step since positions were last filled."""
    weights_are_old: bool = True
    """The policy, an engine or an evaluation changed since syncs were last asked for."""
    engines: list[HostRecord] | None = None
    """Its live engine hosts by id; None when one came, went or changed (`State.note_engines`)."""
    newest_version: int = -1
    """Newest version that one of `engines` serves; -1 without any."""
    fitting: dict[int, list[HostRecord]] = field(default_factory=dict)
    """Of them, those that may run training rollouts sampled with at least this version."""

    rules: Rules = field(init=False)
    """Of the job's strategy, with its soft state."""

    def __post_init__(self) -> None:
        """Rules are made here so that no record is ever without them."""
        from scheduler.core.strategies import rules_for

        self.rules = rules_for(self.plan.scheduling)

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that this record runs."""
        return self.plan.attempt_id

    @property
    def filling(self) -> int:
        """The step being filled."""
        return self.committed + 1

    @property
    def is_running(self) -> bool:
        """Groups may be opened and rollouts placed."""
        return self.state is JobState.RUNNING

    def training_groups(self) -> list[GroupRecord]:
        """Live training groups in creation order."""
        return [group for group in self.groups.values() if group.is_training]

    def last_valid_step(self, group: GroupRecord) -> int:
        """Last step that the group may enter without breaking the staleness bound."""
        return group.oldest_possible_version() + 1 + self.plan.max_staleness
