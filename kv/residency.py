"""Who keeps pages on the device, decided once per tick from one snapshot (`scheduling.md` section 5).

Running sequences keep theirs. Behind them the others are taken in the order of their ranks as long as
they fit: these are `high_ref`. From the first that does not fit on everybody is `low_ref`: that is
controlled demotion, the best-ranked stay whole instead of all thrashing. A waiting turn is admitted
exactly when it is among those that fit, so that admission and eviction read the same snapshot and no
page of a turn admitted in a tick is evicted in that tick.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Claimant(Protocol):
    """A rollout that is not running: its turn waits, or its tool runs."""

    rank: int

    @property
    def claim_pages(self) -> int:
        """Pages that it needs to run, or that it holds while its tool runs."""
        ...

    @property
    def is_waiting(self) -> bool:
        """Its turn waits; else its tool runs."""
        ...

    @property
    def is_kept(self) -> bool:
        """A tool gap that is worth its pages (`kv.gaps`); always true of a waiting turn."""
        ...


C = TypeVar("C", bound=Claimant)


@dataclass(slots=True)
class Choice(Generic[C]):
    """Outcome of one tick."""

    admitted: list[C] = field(default_factory=list)
    """Waiting turns that run now, best first."""
    low: list[C] = field(default_factory=list)
    """Those whose pages may go, worst first."""
    blocked: C | None = None
    """The best-ranked turn that does not fit."""


def choose(claimants: Iterable[C], room_pages: int, slots_free: int) -> Choice[C]:
    """Split the claimants, given in the order of their ranks, by what fits into the room.

    `room_pages` is the capacity less what running sequences hold and less the decode reserve.
    """
    choice: Choice[C] = Choice()
    for claimant in claimants:
        if claimant.is_waiting:
            fits = claimant.claim_pages <= room_pages and slots_free > 0
            if choice.blocked is None and fits:
                choice.admitted.append(claimant)
                room_pages -= claimant.claim_pages
                slots_free -= 1
                continue
            choice.blocked = choice.blocked or claimant
            choice.low.append(claimant)
        elif claimant.is_kept and choice.blocked is None and claimant.claim_pages <= room_pages:
            room_pages -= claimant.claim_pages
        else:
            choice.low.append(claimant)
    choice.low.reverse()
    return choice
