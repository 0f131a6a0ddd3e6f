"""Why accepted turns have no slot: what the engine's next step would give each of them.

Engines take waiting turns at a step, in order of rank, while slots and room for keys are left. A turn
that fits waits for that step and for nothing else, whatever its queue looks like meanwhile.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from domain.engine import EngineStats
from domain.ids import RolloutId
from domain.schedule import WaitReason


@dataclass(frozen=True, slots=True)
class Queued:
    """A turn without a slot; `tokens` is its prompt."""

    rollout_id: RolloutId
    rank: int
    tokens: int


def reasons_of(
    queued: Iterable[Queued], stats: EngineStats, page_tokens: int
) -> dict[RolloutId, WaitReason]:
    """The reason of each; turns of one rank are given in the order of their arrival."""
    slots = max(stats.slots - stats.active, 0)
    pages = stats.kv_pages - stats.kv_pages_held
    reasons: dict[RolloutId, WaitReason] = {}
    for turn in sorted(queued, key=lambda one: one.rank):
        needed = -(-turn.tokens // page_tokens) if stats.kv_pages else 0
        if stats.paused:
            reason = WaitReason.WAITS_FOR_WEIGHTS
        elif not slots:
            reason = WaitReason.WAITS_FOR_SLOT
        elif needed > pages:
            reason = WaitReason.WAITS_FOR_KV
        else:
            reason = WaitReason.WAITS_FOR_STEP
            slots, pages = slots - 1, pages - needed
        reasons[turn.rollout_id] = reason
    return reasons
