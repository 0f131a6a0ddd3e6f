"""The episode queue of ROLL: one per group of environments, first episode first, no look at the engines.

Source: `GroupQueue` in `roll/distributed/scheduler/rollout_scheduler.py` (alibaba/ROLL, Apache-2.0,
snapshot of 2026-08-19). The first step opens `ratio + 1` episodes, each further step one; a step drops
the episodes that are more than `ratio` steps old; only the smallest episode may be taken. With a ratio
of 1 and nothing taken 2, 3, then 2 episodes are open.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Episode:
    """One group to come of a queue; `ordinal` names the group once it was opened."""

    number: int
    created_at_step: int
    ordinal: int | None = None


@dataclass(slots=True)
class EpisodeQueue:
    """Episodes of one group of environments, by ascending number."""

    ratio: int
    step: int | None = None
    next_number: int = 0
    episodes: list[Episode] = field(default_factory=list)

    def advance(self, step: int, expires: bool = True) -> list[Episode]:
        """A step begins; the episodes that it makes too old leave the queue and are returned."""
        extra = self.ratio if self.step is None else 0
        expired = [e for e in self.episodes if expires and step - e.created_at_step > self.ratio]
        self.episodes = [e for e in self.episodes if e not in expired]
        self.step = step
        for _ in range(extra + 1):
            self.refill()
        return expired

    def refill(self) -> None:
        """One more episode of the present step: the next step's, or for one that was filtered out."""
        self.episodes.append(Episode(self.next_number, self.step or 0))
        self.next_number += 1

    def head(self) -> Episode | None:
        """The only episode that may be taken: nothing behind it counts before it."""
        return self.episodes[0] if self.episodes else None

    def unopened(self) -> Episode | None:
        """The first episode that no group stands for yet."""
        return next((e for e in self.episodes if e.ordinal is None), None)

    def find(self, ordinal: int) -> Episode | None:
        """The episode that a group stands for."""
        return next((e for e in self.episodes if e.ordinal == ordinal), None)

    def remove(self, ordinal: int) -> None:
        """The group was taken or given up."""
        self.episodes = [e for e in self.episodes if e.ordinal != ordinal]
