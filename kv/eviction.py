"""Which pages leave the device next, when room is needed.

`recency`: least recently used first, whoever they belong to. `classes`: unused by recency, then
low_ref from the worst rank, then (only when nothing else is left) high_ref from the worst rank: that is
controlled demotion. Without it none of the high ones stands behind another and they go by recency.
Pages leave from the end of a context: what is left is still a prefix and still of use.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from kv.ranks import is_high
from kv.rules import Eviction


class Holder(Protocol):
    """Somebody whose pages are not locked by a running sequence."""

    key: int
    """Ends every order: equal in nobody else on this engine."""

    @property
    def last_used(self) -> float:
        """When it last ran."""
        ...

    @property
    def rank(self) -> int:
        """Smaller is better."""
        ...

    @property
    def is_unused(self) -> bool:
        """Its trajectory ended: no reference is left."""
        ...


H = TypeVar("H", bound=Holder)


def victims(holders: Iterable[H], rule: Eviction, *, demotes: bool = True) -> list[H]:
    """Holders in the order in which their pages go; `demotes` says whether the high ones go by rank."""
    if rule is Eviction.RECENCY:
        return sorted(holders, key=_by_recency)
    return sorted(holders, key=_by_class if demotes else _by_class_and_use)


def _by_recency(holder: Holder) -> tuple[float, int]:
    return holder.last_used, holder.key


# A rank is never where a time may be: what is typed as a float is made one by compiled modules, and
# neighbouring ranks beyond 2^53 are then one.


def _by_class(holder: Holder) -> tuple[bool, float, int, int]:
    if holder.is_unused:
        return False, holder.last_used, 0, holder.key
    return True, 0.0, -holder.rank, holder.key


def _by_class_and_use(holder: Holder) -> tuple[int, float, int, int]:
    if holder.is_unused:
        return 0, holder.last_used, 0, holder.key
    if is_high(holder.rank):
        return 2, holder.last_used, 0, holder.key
    return 1, 0.0, -holder.rank, holder.key
