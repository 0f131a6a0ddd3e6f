"""Frames of the sandbox pool that the coordinator knows nothing of: hints, and refusals in numbers."""

from dataclasses import dataclass

from domain.ids import GroupId, RolloutId


@dataclass(frozen=True, slots=True)
class InGeneration:
    """Rollout host to node agent, a hint without an answer: this turn is generated from now on.

    Until the turn's intent comes nobody needs the sandbox. May be lost, and may come late.
    """

    rollout_id: RolloutId
    try_: int
    hop: int
    turn: int
    expected_s: float
    """As predicted; 0 while nothing is known."""
    rank: int


@dataclass(frozen=True, slots=True)
class RoomRefused:
    """Node agent to leader: no room for these tries now. The leader asks again.

    `rule` is `sandboxes` (the count), or resource and reason of `sandboxes.core.admission` with what it
    needed and what was available: bytes, or a share of time where the resource is pressure.
    """

    group_id: GroupId
    members: tuple[tuple[RolloutId, int], ...]
    rule: str
    needed: float
    available: float
    cause: str
