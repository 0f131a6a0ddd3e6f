"""A rollout on a modelled engine: its context, its pages, where it stands in its turn."""

from dataclasses import dataclass, field
from enum import IntEnum

from domain.ids import GroupId, RolloutId
from simulation.workload.trajectory import Trajectory


class Phase(IntEnum):
    """Where a rollout stands on its engine."""

    WAITING = 0
    """Its turn waits for room or a slot."""
    FETCHING = 1
    """Admitted; its pages come from the host tier or another engine."""
    PREFILL = 2
    DECODE = 3
    GAP = 4
    """Its tool runs."""
    ENDED = 5
    """Its pages are unused."""


@dataclass(slots=True, eq=False)
class Prefix:
    """The first prompt of a group on one engine, charged once.

    It is a holder of pages of its own, used last when a rollout of the group was, ranked as the best of
    them, and evicted after all pages behind it.
    """

    group_id: GroupId
    tokens: int
    pages: int
    is_resident: bool = False
    is_computed: bool = False
    streams: int = 0
    """Streams that hold it: running, or with pages behind it."""
    members: list["Stream"] = field(default_factory=list, repr=False)
    """The group's streams on this engine, ended ones with pages among them."""
    left_at: float = 0.0
    """Last use by streams that left it."""
    key: int = 0
    """Above those of all streams: what else is equal goes before it."""

    @property
    def last_used(self) -> float:
        """By whichever of the group."""
        return max([self.left_at, *[stream.last_used for stream in self.members]])

    @property
    def is_idle(self) -> bool:
        """It may be evicted: there, and nothing stands on it."""
        return self.is_resident and self.streams == 0

    @property
    def rank(self) -> int:
        """Of its best member."""
        return min(stream.rank for stream in self.members)

    @property
    def is_unused(self) -> bool:
        """Nobody who may come back knows it."""
        return all(stream.is_unused for stream in self.members)


@dataclass(slots=True, eq=False)
class Stream:
    """One rollout's presence on one engine; a migrated rollout has a new one there.

    Tokens of its context lie on the device up to `cached`; the next `hosted` are on the host tier.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    key: int
    ordinal: int
    trajectory: Trajectory
    prefix: Prefix
    rank: int
    turn: int = 0
    """Finished turns."""
    prompt: int = 0
    """Context at the begin of the open turn's generation."""
    cached: int = 0
    hosted: int = 0
    sampled: int = 0
    """Of the open turn."""
    sampled_total: int = 0
    output_left: int = 0
    phase: Phase = Phase.GAP
    arrived: float = 0.0
    admitted: float = 0.0
    """When the open turn got its slot, the last time if it lost it meanwhile."""
    arrival: int = 0
    last_used: float = 0.0
    gap_until: float = 0.0
    gap_since: float = 0.0
    kept_until: float = 0.0
    """Pinned through a gap until then, by a rule with a time to live."""
    oldest_version: int | None = None
    newest_version: int = -1
    computed: int = 0
    """Tokens that were computed once already; prefill below it is work done again."""
    pages: int = 0
    """Private device pages held."""
    holds_up_to: int = 0
    """Context that these pages hold."""
    imported: int = 0
    """Tokens that come from another engine, there at `import_at`."""
    import_at: float = 0.0
    waited_s: float = 0.0
    is_on_prefix: bool = False
    awaits_prefix: bool = False
    """`cached` counts a prefix that a sibling was computing when this turn was admitted."""

    @property
    def tool(self) -> str:
        """Kind of the tool that runs, or ran last."""
        return str(self.trajectory.turns[max(self.turn - 1, 0)].tool)

    @property
    def is_waiting(self) -> bool:
        """Its turn waits."""
        return self.phase is Phase.WAITING

    @property
    def is_unused(self) -> bool:
        """No reference is left on its pages."""
        return self.phase is Phase.ENDED

    @property
    def is_active(self) -> bool:
        """It holds a slot."""
        return self.phase in (Phase.FETCHING, Phase.PREFILL, Phase.DECODE)

    @property
    def context(self) -> int:
        """Tokens of its context so far."""
        return self.prompt + self.sampled
