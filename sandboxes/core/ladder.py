"""What a node does under memory pressure, cheapest rung first, from one snapshot of it.

    stop admission < balloon < page out < evict to disk < kill

A rung is used up, critical groups' sandboxes last on it, before the next is touched; and the ladder
ends as soon as what it expects to free is what was asked for. So nobody is killed while anybody,
critical or not, could still be made smaller by a cheaper rung: being slow costs less than being lost.

Balloon and page-out take sandboxes whose rollout is in generation: nobody runs in them. A page-out
must pay: the gap that is left is longer than all pages of the sandbox need to go out and come back,
whatever part of them the swap still takes. Evicting takes also those whose tool runs, last; it stalls
them until they are restored elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from domain.sandbox import MemberKey

SMALLEST_BYTES: Final = 1 << 20
"""Below 1 MiB an action costs more than it frees."""


class Rung(IntEnum):
    """In the order of their cost."""

    STOP_ADMISSION = 0
    BALLOON = 1
    PAGE_OUT = 2
    EVICT = 3
    KILL = 4


@dataclass(frozen=True, slots=True)
class Resident:
    """One sandbox as the ladder sees it. Bytes are in RAM now."""

    key: MemberKey
    rank: int
    """Of its group; smaller runs first, so the largest goes first."""
    is_critical: bool
    is_in_generation: bool
    gap_left_s: float
    """Until its rollout needs it again, as predicted; 0 while a tool runs."""
    private_bytes: int
    overhead_bytes: int
    free_bytes: int = 0
    """Of the private ones, unused inside the guest: what a balloon gets back."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What this node's runtime can do, and with how much room."""

    can_balloon: bool = True
    can_page_out: bool = True
    can_evict: bool = True
    swap_free_bytes: int = 0
    disk_free_bytes: int = 0
    swap_bytes_s: float = 2e9
    """Speed at which pages go out, and come back."""


@dataclass(frozen=True, slots=True)
class Pressed:
    """Snapshot of a node that must free memory."""

    bytes_wanted: int
    is_admitting: bool
    residents: tuple[Resident, ...]
    tools: Tools


@dataclass(frozen=True, slots=True)
class Action:
    """One imperative; `bytes_expected` is what leaves RAM. Only stopping admission names nobody."""

    rung: Rung
    key: MemberKey | None
    bytes_expected: int


@dataclass(slots=True)
class _Climb:
    """What is left of each sandbox and of the node's room while rungs are used."""

    wanted: int
    swap_free: int
    disk_free: int
    left: dict[MemberKey, Resident]
    actions: list[Action]

    def take(self, rung: Rung, one: Resident, freed: int) -> None:
        self.actions.append(Action(rung, one.key, freed))
        self.wanted -= freed


def climb(node: Pressed) -> tuple[Action, ...]:
    """Actions in the order in which they are to be done; what they do not free is not there."""
    state = _Climb(
        node.bytes_wanted,
        node.tools.swap_free_bytes,
        node.tools.disk_free_bytes,
        {one.key: one for one in node.residents},
        [],
    )
    assert len(state.left) == len(node.residents), "one key, one sandbox"
    if node.is_admitting and node.bytes_wanted > 0:
        state.actions.append(Action(Rung.STOP_ADMISSION, None, 0))
    tools = node.tools
    if tools.can_balloon:
        _use(state, _balloon)
    if tools.can_page_out:
        _use(state, lambda climb_, one: _page_out(climb_, one, tools.swap_bytes_s))
    if tools.can_evict:
        _use(state, _evict)
    _use(state, _kill, worst_ranked_first)
    return tuple(state.actions)


def worst_first(residents: Sequence[Resident]) -> list[Resident]:
    """Order on a cheap rung: critical last; those whose rollout is in generation first; then by rank."""
    return sorted(
        residents, key=lambda one: (one.is_critical, not one.is_in_generation, -one.rank, one.key)
    )


def worst_ranked_first(residents: Sequence[Resident]) -> list[Resident]:
    """Order of the last rung: what is lost is lost, whoever runs; critical last, then by rank alone."""
    return sorted(residents, key=lambda one: (one.is_critical, -one.rank, one.key))


Order = Callable[[Sequence[Resident]], list[Resident]]


def _use(
    state: _Climb, act: Callable[[_Climb, Resident], None], order: Order = worst_first
) -> None:
    for one in order(list(state.left.values())):
        if state.wanted <= 0:
            return
        act(state, one)


def _balloon(state: _Climb, one: Resident) -> None:
    freed = min(one.free_bytes, one.private_bytes)
    if one.is_in_generation and freed >= SMALLEST_BYTES:
        state.take(Rung.BALLOON, one, freed)
        left = replace(one, private_bytes=one.private_bytes - freed, free_bytes=0)
        state.left[one.key] = left


def _page_out(state: _Climb, one: Resident, swap_bytes_s: float) -> None:
    freed = min(one.private_bytes, state.swap_free)
    pays = one.is_in_generation and one.gap_left_s > return_s(one.private_bytes, swap_bytes_s)
    if pays and freed >= SMALLEST_BYTES:
        state.take(Rung.PAGE_OUT, one, freed)
        state.swap_free -= freed
        state.left[one.key] = replace(one, private_bytes=one.private_bytes - freed)


def _evict(state: _Climb, one: Resident) -> None:
    freed = one.private_bytes + one.overhead_bytes
    if freed >= SMALLEST_BYTES and one.private_bytes <= state.disk_free:
        state.take(Rung.EVICT, one, freed)
        state.disk_free -= one.private_bytes
        del state.left[one.key]


def _kill(state: _Climb, one: Resident) -> None:
    freed = one.private_bytes + one.overhead_bytes
    if freed > 0:
        state.take(Rung.KILL, one, freed)
        del state.left[one.key]


def return_s(swapped_bytes: int, swap_bytes_s: float) -> float:
    """Seconds that pages need to go out and come back."""
    return 2 * swapped_bytes / swap_bytes_s
