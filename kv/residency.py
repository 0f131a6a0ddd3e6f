"""Who keeps pages on the device, decided once per tick from one snapshot (`scheduling.md` section 5).

Running sequences keep theirs. Behind them the others are taken in the order of their ranks as long as
they fit: these are `high_ref`. From the first that does not fit on everybody is `low_ref`: that is
controlled demotion, the best-ranked stay whole instead of all thrashing. A waiting turn is admitted
exactly when it is among those that fit, so that admission and eviction read the same snapshot and no
page of a turn admitted in a tick is evicted in that tick.

The order of the claimants is where three mechanisms meet, each with its switch (`order_of`). `by_rank`
has all of them. Without demotion nobody of the high classes ever becomes low, so none of them stands
behind another: a turn of theirs that waits takes its room from any of them that does not run, the least
recently used first, and the low ones go by rank as before. Without priority turns are served in the
order of their arrival, from the room of all whose tools run; ranks still say whose pages go first.
"""

import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from kv.ranks import LOWEST_HIGH, class_of, is_high
from kv.rules import KvRules, Queue

Key = tuple[float, ...]
"""Of a claimant; smaller is better."""


class Claimant(Protocol):
    """A rollout that is not running: its turn waits, or its tool runs."""

    rank: int
    pages: int
    """That it holds now."""
    last_used: float
    arrival: int
    """Place of its turn in the order of arrivals."""
    key: int
    """Ends every order: equal in nobody else on this engine."""

    @property
    def is_waiting(self) -> bool:
        """Its turn waits; else its tool runs."""
        ...


C = TypeVar("C", bound=Claimant)


class Choice(Generic[C]):
    """Outcome of one tick. No dataclass: mypyc, which builds the benchmark, makes no generic ones."""

    def __init__(self) -> None:
        self.admitted: list[C] = []
        """Waiting turns that run now, best first."""
        self.low: list[C] = []
        """Those whose pages may go, worst first."""
        self.blocked: C | None = None
        """The best-ranked turn that does not fit."""
        self.has_slot = False
        """Whether a slot was left for that one: then it lacks pages."""


def choose(
    claimants: Iterable[C],
    claim: Callable[[C], int | None],
    taken: Callable[[C], None],
    room_pages: int,
    slots_free: int,
) -> Choice[C]:
    """Split the claimants, given in the order of `order_of`, by what fits into the room.

    `claim` says how many pages one needs to run, or holds while its tool runs; None for a gap that is
    not worth its pages (`kv.gaps`). It is asked in order, and of nobody behind the first turn that does
    not fit. `taken` hears of whoever fits at once, before the next one is asked: pages that are shared
    are charged to the first who keeps them, not to one who was refused. `room_pages` is the capacity
    less what running sequences hold and less the decode reserve.
    """
    choice: Choice[C] = Choice()
    for claimant in claimants:
        pages = claim(claimant) if choice.blocked is None else None
        fits = pages is not None and pages <= room_pages
        if fits and claimant.is_waiting and slots_free > 0:
            choice.admitted.append(claimant)
            slots_free -= 1
        elif claimant.is_waiting:
            if choice.blocked is None:
                choice.blocked, choice.has_slot = claimant, slots_free > 0
            fits = False
        if fits and pages is not None:
            room_pages -= pages
            taken(claimant)
        else:
            choice.low.append(claimant)
    choice.low.reverse()
    return choice


def order_of(rules: KvRules) -> Callable[[Claimant], Key]:
    """Sort key of claimants, best first."""
    if rules.queue is Queue.RANK:
        return by_rank if rules.demotion else by_use
    return by_arrival if rules.demotion else by_arrival_and_use


def by_rank(claimant: Claimant) -> Key:
    """By class; in a class those with pages first, or turns would push each other out for nothing."""
    return class_of(claimant.rank), claimant.pages == 0, claimant.rank, claimant.key


def by_use(claimant: Claimant) -> Key:
    """As `by_rank`, but of the high ones all turns stand before all gaps, and gaps by recency alone."""
    if claimant.is_waiting or not is_high(claimant.rank):
        return by_rank(claimant)
    return LOWEST_HIGH, True, math.inf, -claimant.last_used, claimant.key


def by_arrival(claimant: Claimant) -> Key:
    """All turns as they came, then the gaps by rank."""
    return (-1, claimant.arrival, claimant.key) if claimant.is_waiting else by_rank(claimant)


def by_arrival_and_use(claimant: Claimant) -> Key:
    """All turns as they came, then the gaps: high ones by recency, low ones by rank."""
    return (-1, claimant.arrival, claimant.key) if claimant.is_waiting else by_use(claimant)
