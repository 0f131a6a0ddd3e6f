"""The step being filled: what is assigned against what went through backward. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.ids import GroupId, RolloutId
from stores.system.training import Member, PayloadRef


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from a look at the members: rebuild first, then add these in order."""

    rebuild: bool
    add: tuple[PayloadRef, ...]


@dataclass(slots=True)
class OpenStep:
    """Bookkeeping of one step. `trained` stands in order of backward, which is recorded."""

    step: int
    batch: int
    trained: list[PayloadRef] = field(default_factory=list)
    counted: dict[GroupId, tuple[RolloutId, ...]] = field(default_factory=dict)
    excluded: list[GroupId] = field(default_factory=list)
    """Groups whose loss was not finite, left out under `on_divergence: warn`."""
    lost: dict[GroupId, str] = field(default_factory=dict)
    """Groups whose payload could not be read, with the cause; never trained in this process."""
    diverged: str | None = None
    """Why this step is skipped, under `on_divergence: skip`."""
    cause: str | None = None
    """What was not finite, whatever followed from it."""

    def plan(self, members: Sequence[Member]) -> Plan:
        """A member that left forces a rebuild; new ones are added in order of assignment."""
        assigned = {member.payload.group_id for member in members}
        kept = [ref for ref in self.trained if ref.group_id in assigned]
        if len(kept) != len(self.trained):
            fresh = self._fresh(members, {ref.group_id for ref in kept})
            return Plan(rebuild=True, add=(*kept, *fresh))
        return Plan(False, self._fresh(members, {ref.group_id for ref in self.trained}))

    def _fresh(self, members: Sequence[Member], known: set[GroupId]) -> tuple[PayloadRef, ...]:
        ignored = known | set(self.excluded) | self.lost.keys()
        return tuple(m.payload for m in members if m.payload.group_id not in ignored)

    def restart(self) -> None:
        """The gradient is being rebuilt: nothing has gone through backward."""
        self.trained.clear()
        self.counted.clear()

    def record(self, ref: PayloadRef, counted: tuple[RolloutId, ...]) -> None:
        """A group went through backward (or, in a skipped step, was taken note of)."""
        self.trained.append(ref)
        self.counted[ref.group_id] = counted

    def forget_departed(self, members: Sequence[Member]) -> None:
        """Exclusions and losses of groups that left the batch concern nobody any more."""
        assigned = {member.payload.group_id for member in members}
        self.excluded = [name for name in self.excluded if name in assigned]

    def is_due(self, members: Sequence[Member], *, streams: bool) -> bool:
        """Whether groups may be worked on: at once where they stream, else with all B assigned."""
        return streams or len({member.payload.group_id for member in members}) == self.batch

    def is_complete(self, members: Sequence[Member]) -> bool:
        """All B positions are filled and every group in them is settled."""
        settled = {ref.group_id for ref in self.trained} | set(self.excluded)
        assigned = {member.payload.group_id for member in members}
        return len(assigned) == self.batch and assigned == settled
