"""The token record of a rollout. Ids are written only by append; text is for display.

Per segment the four vectors have one entry per token: `mask` is 1 on sampled tokens (a sampled end
token included) and 0 on prompt, tool and user tokens; `logprobs` is the log-probability under the
distribution really sampled and 0.0 where mask is 0; `versions` is the policy version that sampled
the token and -1 where mask is 0.
"""

from dataclasses import dataclass, field

from domain.ids import GroupId, RolloutId, TaskId


@dataclass(frozen=True, slots=True)
class Segment:
    """One append-only token sequence; a rollout has one unless its harness rewrites history."""

    token_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse vectors of different lengths: a hole would silently shift the loss mask."""
        n = len(self.token_ids)
        assert n == len(self.mask) == len(self.logprobs) == len(self.versions)

    @property
    def oldest_version(self) -> int | None:
        """Smallest version of a sampled token, None when nothing was sampled."""
        return min((v for v in self.versions if v >= 0), default=None)

    @property
    def newest_version(self) -> int | None:
        """Largest version of a sampled token, None when nothing was sampled."""
        return max((v for v in self.versions if v >= 0), default=None)


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Where one turn lies: token offsets into its segment, its tool calls and its cost in seconds."""

    turn: int
    start: int
    sampled_end: int
    end: int
    tool_calls: int
    finish: str
    generate_s: float
    tool_s: float
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Everything a finished try leaves: segments, turns, the messages shown to people, artefacts."""

    rollout_id: RolloutId
    group_id: GroupId
    task_id: TaskId
    try_: int
    hop: int
    end: str
    segments: tuple[Segment, ...]
    turns: tuple[TurnSpan, ...]
    messages: tuple[dict[str, object], ...]
    metrics: dict[str, float] = field(default_factory=dict)
    artefacts: dict[str, str] = field(default_factory=dict)
    """Small text files of the agent's sandbox, by name, taken when the journal was sealed."""
    cause: str | None = None
    """What a person can act on, for instance the message that overflowed the context."""
    rewrites: tuple[int, ...] = ()
    """Places in `messages` where the environment began the conversation anew."""


@dataclass(frozen=True, slots=True)
class TrainRollout:
    """What the trainer needs of one member: its segments, total reward and advantage."""

    rollout_id: RolloutId
    reward: float
    advantage: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class GroupPayload:
    """The graded group as the trainer reads it, members that count only, in index order."""

    group_id: GroupId
    task_id: TaskId
    size_planned: int
    members: tuple[TrainRollout, ...]
