"""Room on the nodes: what their own accounts say, less what was sent there since.

    NodeReported          -> report ----> sandboxes.core.placement.Pool <---- place <- spots.py
    SandboxReady, an end  -> answered, give_back             (holdings.py, for each member)

A part is what one decision sent to a node. Its room is taken off until the node's next report after
the last of its members was answered: a report holds all that the node said before it was ready. A
part of which nothing began gives its room back at once.

A member counts as it would on a node of its own, so that what is placed is refused by no estimate;
what pools with others comes back with the report. Real nodes admit no CPU; the pool's second resource
is the number of sandboxes that a node still takes.
"""

import math
from dataclasses import dataclass
from typing import Final

from domain.ids import GroupId, HostId, OrganizationId
from domain.plan import JobPlan
from domain.sandbox import NodeRoom, SandboxTemplate, TemplateRoom
from sandboxes.core.admission import Refused
from sandboxes.core.asks import GroupAsk, NodeReport, Placement
from sandboxes.core.growth import GrowthModel
from sandboxes.core.names import NodeId, PlacementId, TemplateId
from sandboxes.core.placement import Pool
from sandboxes.core.reserve import alone_bytes

NODES_MAX: Final = 4_096
"""Nodes that are placed on; reports of more are left out, as if these nodes had not joined."""

TEMPLATES_MAX: Final = 10_000
"""Templates of which the leader keeps what nodes learned; the longest unheard of goes first."""


@dataclass(frozen=True, slots=True)
class Spot:
    """So many members on a node; `part` holds their room there, where rooms are known."""

    node: HostId
    members: int
    part: PlacementId | None = None


@dataclass(slots=True)
class _Part:
    node: HostId
    tenant: OrganizationId
    unanswered: int
    holding: int
    has_begun: bool = False
    is_pending: bool = True
    """Its room is taken off; no report of the node holds it yet."""


class NodeRooms:
    """The rooms of all nodes that reported. Parts that are unknown ended with their node."""

    def __init__(self) -> None:
        self._pool = Pool(NODES_MAX)
        self._nodes: dict[HostId, None] = {}
        self._parts: dict[PlacementId, _Part] = {}
        self._begun: dict[HostId, list[PlacementId]] = {}
        """Parts that the node's next report will hold."""
        self._templates: dict[str, tuple[HostId, TemplateRoom]] = {}
        self.is_short = False
        """Somebody found no room since the last report."""

    @property
    def is_known(self) -> bool:
        """Some node has said what room it has."""
        return bool(self._nodes)

    def report(self, node: HostId, room: NodeRoom) -> bool:
        """A node's account; whether more may be placed now than before."""
        is_new = node not in self._nodes
        if is_new and len(self._nodes) >= NODES_MAX:
            return False
        self._nodes[node] = None
        begun = self._begun.pop(node, [])
        self._pool.report(_report_of(node, room), begun)
        for name in begun:
            self._parts[name].is_pending = False
            self._settle(name)
        for template in room.templates:
            self._learn(node, template)
        was_short, self.is_short = self.is_short, False
        return is_new or was_short

    def leave(self, node: HostId) -> None:
        """A node is gone, with all that was sent there."""
        if node not in self._nodes:
            return
        del self._nodes[node]
        self._pool.leave(NodeId(node))
        self._begun.pop(node, None)
        for name in [name for name, part in self._parts.items() if part.node == node]:
            del self._parts[name]

    def place(self, ask: GroupAsk) -> tuple[Spot, ...] | Refused:
        """Where its members go, their room taken; of what an empty pool would not take, what fits now."""
        placed: tuple[Placement, ...] | Placement | Refused = self._pool.place(ask)
        if isinstance(placed, Refused) and self._pool.empty_takes(ask) < ask.members:
            placed = self._pool.place_part(ask)
        if isinstance(placed, Refused):
            self.is_short = True
            return placed
        parts = (placed,) if isinstance(placed, Placement) else placed
        return tuple(self._begin(ask, part) for part in parts)

    def answered(self, name: PlacementId) -> None:
        """The node has the sandbox of a member."""
        part = self._parts.get(name)
        if part is not None:
            part.unanswered -= 1
            part.has_begun = True
            self._settle(name)

    def give_back(self, name: PlacementId, was_answered: bool) -> None:
        """A member holds nothing there any more."""
        part = self._parts.get(name)
        if part is not None:
            part.unanswered -= not was_answered
            part.holding -= 1
            self._settle(name)

    def ask_of(
        self,
        plan: JobPlan,
        group: GroupId,
        members: int,
        near: tuple[HostId, ...] = (),
        without: tuple[HostId, ...] = (),
    ) -> GroupAsk:
        """What members of a job's group need: of several templates the largest, of which none is shared."""
        known = [self._template(one) for one in plan.templates]
        largest = max(known, key=lambda one: (one.each_bytes, one.name))
        name = largest.name if len(known) == 1 else f"{plan.job_id}/mixed"
        return GroupAsk(
            group_id=group,
            tenant=plan.organization_id,
            template=TemplateId(name),
            members=members,
            expected_bytes=float(largest.each_bytes),
            expected_cores=1.0,
            template_bytes=float(largest.shared_bytes),
            near=tuple(NodeId(node) for node in near),
            without=frozenset(NodeId(node) for node in without),
        )

    def holding(self) -> dict[PlacementId, int]:
        """Members that hold something of each part; for the invariants."""
        return {name: part.holding for name, part in self._parts.items() if part.holding}

    def _begin(self, ask: GroupAsk, placed: Placement) -> Spot:
        node, members = HostId(placed.node_id), placed.members
        self._parts[placed.placement_id] = _Part(node, ask.tenant, members, members)
        return Spot(node, members, placed.placement_id)

    def _settle(self, name: PlacementId) -> None:
        """What follows once all members are answered, and once none holds anything."""
        part = self._parts[name]
        if part.is_pending:
            begun = self._begun.setdefault(part.node, [])
            if part.unanswered or name in begun:
                return
            if part.has_begun:
                begun.append(name)
                return
            self._pool.cancel(name)
            del self._parts[name]
        elif not part.holding:
            self._pool.released(part.tenant, NodeId(part.node))
            del self._parts[name]

    def _learn(self, node: HostId, template: TemplateRoom) -> None:
        """The node with most evidence speaks for all; the newest of equals."""
        known = self._templates.pop(template.name, None)
        if known is None or known[0] == node or known[1].rollouts <= template.rollouts:
            known = (node, template)
        self._templates[template.name] = known
        while len(self._templates) > TEMPLATES_MAX:
            del self._templates[next(iter(self._templates))]

    def _template(self, declared: SandboxTemplate) -> TemplateRoom:
        known = self._templates.get(declared.name)
        if known is not None:
            return known[1]
        prior = alone_bytes(GrowthModel(declared.ceiling_bytes).growth(0))
        return TemplateRoom(declared.name, math.ceil(prior), 0, False, 0)


def _report_of(node: HostId, room: NodeRoom) -> NodeReport:
    present = (TemplateId(one.name) for one in room.templates if one.is_present)
    return NodeReport(
        node_id=NodeId(node),
        room_bytes=float(room.room_bytes),
        room_cores=float(room.places),
        largest_bytes=float(room.largest_bytes),
        largest_cores=float(room.places_max),
        overhead_bytes=room.each_overhead_bytes,
        pressure=room.pressure,
        is_open=room.is_open,
        templates=frozenset(present),
    )
