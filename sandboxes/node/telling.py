"""What a node tells the leader of its room: in its snapshot, when it changed, and now and then.

A report holds all that was taken before it, and frames of one connection keep their order: every try
that the leader was told to be ready is in the next report.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from domain.sandbox import NodeRoom, SandboxPurpose, TemplateRoom
from infra.clock import Clock
from sandboxes.core.names import MIB, TemplateId
from sandboxes.core.reserve import alone_bytes, pooled_bytes
from sandboxes.node.account import NodeAccount
from sandboxes.node.sampler import SAMPLE_S
from sandboxes.node.slots import Slots

AGAIN_S: Final = 10.0
"""A node of which nothing changed says so after it: what the leader knows is never older."""

CHANGE_SHARE: Final = 1 / 64
"""Of a node's memory: rooms that moved by less are no news."""

OVERHEAD_STEP: Final = 8 * MIB
"""What one sandbox costs apart is told in such steps, or noise would order nodes of one kind."""

TEMPLATES_MAX: Final = 64
"""Of one report: those whose snapshots are here, then the newest that the node learned of."""


def room_of(account: NodeAccount, slots: Slots, pressure: float) -> NodeRoom:
    """The account as the leader needs it."""
    ledger, pages = account.ledger, account.ledger.pages
    rules, load = ledger.rules, ledger.load()
    kept = rules.grading_reserve_bytes + pages.other_bytes
    each = pages.overhead_bytes / len(pages) if len(pages) else 0.0
    return NodeRoom(
        capacity_bytes=pages.capacity_bytes,
        private_bytes=pages.private_bytes,
        reserve_bytes=round(pooled_bytes(load.groups, rules.z)),
        shared_bytes=pages.shared_bytes,
        overhead_bytes=pages.overhead_bytes,
        other_bytes=pages.other_bytes,
        room_bytes=round(account.room_bytes()),
        largest_bytes=round(rules.packing * pages.capacity_bytes) - kept,
        places=slots.free(SandboxPurpose.AGENT),
        places_max=slots.most(SandboxPurpose.AGENT),
        each_overhead_bytes=OVERHEAD_STEP * round(each / OVERHEAD_STEP),
        pressure=pressure,
        is_open=ledger.gate.is_open,
        templates=tuple(_templates(account)),
    )


def _templates(account: NodeAccount) -> Iterator[TemplateRoom]:
    ledger = account.ledger
    graders = f"/{SandboxPurpose.GRADER}"
    newest = [one for one in ledger.templates() if not one.endswith(graders)][::-1]
    newest.sort(key=lambda one: not ledger.pages.has_template(one))
    for template in newest[:TEMPLATES_MAX]:
        yield _template(account, template)


def _template(account: NodeAccount, template: TemplateId) -> TemplateRoom:
    growth = account.ledger.growth_of(template)
    return TemplateRoom(
        name=template,
        each_bytes=math.ceil(alone_bytes(growth.growth(0))),
        shared_bytes=account.shared_bytes(template),
        is_present=account.ledger.pages.has_template(template),
        rollouts=growth.rollouts,
    )


@dataclass(slots=True)
class RoomTeller:
    """`run` looks for ever."""

    account: NodeAccount
    slots: Slots
    pressure: Callable[[], float | None]
    tell: Callable[[NodeRoom], None]
    clock: Clock
    _told: NodeRoom | None = None
    _told_at: float = -math.inf

    async def run(self) -> None:
        """Look after each sample."""
        while True:
            self.look()
            await self.clock.sleep(SAMPLE_S)

    def said(self) -> NodeRoom:
        """For a snapshot: whoever gets it has been told."""
        self._told, self._told_at = self._room(), self.clock.monotonic()
        return self._told

    def look(self) -> None:
        """Tell what is news."""
        now, room = self.clock.monotonic(), self._room()
        if not self._is_news(room) and now - self._told_at < AGAIN_S:
            return
        self._told, self._told_at = room, now
        self.tell(room)

    def _room(self) -> NodeRoom:
        return room_of(self.account, self.slots, self.pressure() or 0.0)

    def _is_news(self, room: NodeRoom) -> bool:
        told = self._told
        if told is None or (told.is_open, told.places) != (room.is_open, room.places):
            return True
        if [one.name for one in told.templates] != [one.name for one in room.templates]:
            return True
        return abs(told.room_bytes - room.room_bytes) >= CHANGE_SHARE * room.capacity_bytes
