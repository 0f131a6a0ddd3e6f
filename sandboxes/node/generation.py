"""Which rollouts are in generation, and for how much longer, as their hosts said.

Hints only: one that is lost leaves a sandbox alone, one that is late is refused by its turn or ended by
the turn itself. Nothing but the order in which memory is taken back depends on them.
"""

from dataclasses import dataclass, field

from domain.sandbox import MemberKey


@dataclass(frozen=True, slots=True)
class Generation:
    """A turn that is generated. Seconds of the node's monotonic clock."""

    since: float
    expected_s: float
    rank: int
    """Of its group; smaller runs first."""

    def left_s(self, now: float) -> float:
        """Until the tool probably runs."""
        return max(0.0, self.since + self.expected_s - now)


@dataclass(slots=True)
class Generations:
    """By sandbox. Ranks are kept after the turn: a killed one must be the worst also while it runs."""

    running: dict[MemberKey, Generation] = field(default_factory=dict)
    ranks: dict[MemberKey, int] = field(default_factory=dict)

    def begin(self, key: MemberKey, generation: Generation) -> None:
        """Its rollout is in generation."""
        self.running[key] = generation
        self.ranks[key] = generation.rank

    def end(self, key: MemberKey) -> None:
        """Its sandbox is needed."""
        self.running.pop(key, None)

    def forget(self, key: MemberKey) -> None:
        """The sandbox is gone."""
        self.end(key)
        self.ranks.pop(key, None)
