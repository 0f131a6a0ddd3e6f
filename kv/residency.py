"""Who keeps pages on the device, decided once per tick from one snapshot (`scheduling.md` section 5).

Running sequences keep theirs. Behind them the others are taken in the order of their ranks as long as
they fit: these are `high_ref`. From the first that does not fit on everybody is `low_ref`: that is
controlled demotion, the best-ranked stay whole instead of all thrashing. A waiting turn is admitted
exactly when it is among those that fit, so that admission and eviction read the same snapshot and no
page of a turn admitted in a tick is evicted in that tick.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Claimant(Protocol):
    """A rollout that is not running: its turn waits, or its tool runs."""

    @property
    def is_waiting(self) -> bool:
        """Its turn waits; else its tool runs."""
        ...


C = TypeVar("C", bound=Claimant)


class Choice(Generic[C]):
    """Outcome of one tick."""

    def __init__(self) -> None:
        self.admitted: list[C] = []
        """Waiting turns that run now, best first."""
        self.low: list[C] = []
        """Those whose pages may go, worst first."""
        self.blocked: C | None = None
        """The best-ranked turn that does not fit."""


def choose(
    claimants: Iterable[C], claim: Callable[[C], int | None], room_pages: int, slots_free: int
) -> Choice[C]:
    """Split the claimants, given in the order of their ranks, by what fits into the room.

    `claim` says how many pages one needs to run, or holds while its tool runs; None for a gap that is
    not worth its pages (`kv.gaps`). It is asked in order, and of nobody behind the first that does not
    fit. `room_pages` is the capacity less what running sequences hold and less the decode reserve.
    """
    choice: Choice[C] = Choice()
    for claimant in claimants:
        pages = claim(claimant) if choice.blocked is None else None
        fits = pages is not None and pages <= room_pages
        if fits and claimant.is_waiting and slots_free > 0:
            choice.admitted.append(claimant)
            slots_free -= 1
        elif claimant.is_waiting:
            choice.blocked = choice.blocked or claimant
            fits = False
        if fits and pages is not None:
            room_pages -= pages
        else:
            choice.low.append(claimant)
    choice.low.reverse()
    return choice
