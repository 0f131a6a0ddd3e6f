"""Which node takes a group, decided by the leader from what nodes reported.

    cost of n sandboxes on a node = template working set, where absent + n x (expected bytes + overhead)

Least cost wins, then lowest pressure, then tenant spread, then id. Nodes that cost the same are one
bucket: same overhead, same step of pressure; the cost then only asks whether the template is there.
Buckets are tried from the cheapest, each through an index of rooms, so no node is looked at that does
not fit. A group splits only when no node fits it whole, into the largest parts that fit. Members
that come later go to their siblings while these have room.

A placement holds its room until a report of the node includes it or it failed (`cancel`). The node has
the last word (`admission.py`); what it refuses is cancelled and placed elsewhere.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeVar

from domain.ids import OrganizationId
from domain.sandbox import SandboxPurpose
from sandboxes.core.admission import Refused, Resource, Why
from sandboxes.core.asks import Bucket, GroupAsk, NodeReport, Placement
from sandboxes.core.gate import RESUME_PRESSURE, STOP_PRESSURE
from sandboxes.core.names import NodeId, PlacementId, TemplateId
from sandboxes.core.rooms import NONE, Holders, Rooms, RoomTree

T = TypeVar("T")

PRESSURE_STEPS: Final = (0.005, RESUME_PRESSURE, STOP_PRESSURE)
"""Upper bounds; nodes inside one step are equally pressed, or noise would decide instead of spread."""

SPREAD_LOOKED_AT: Final = 4
"""Fitting nodes of a bucket among which tenants are spread: bounds a placement on a large pool."""

LACKS_LOOKED_AT: Final = 64
"""Nodes with bytes that a refusal asks for their cores: bounds what it costs to name the most of them."""

ROUNDING: Final = 1e-9
"""Sandboxes by which a quotient may be too small."""

MEMBERS_MAX: Final = 1_024
"""Of one group: bounds the search for a split."""


@dataclass(slots=True)
class _Node:
    report: NodeReport
    place: int
    bucket: Bucket | None
    """None: it takes nothing now."""
    templates: Counter[TemplateId]
    """One for a report, one for each placement that is under way."""
    listed: dict[TemplateId, Holders] = field(default_factory=dict)
    """Indexes of holders that this node stands in."""
    tenants: Counter[OrganizationId] = field(default_factory=Counter)
    """Placements by tenant."""
    pending_bytes: float = 0.0
    pending_cores: float = 0.0

    @property
    def room_bytes(self) -> float:
        return self.report.room_bytes - self.pending_bytes

    @property
    def room_cores(self) -> float:
        return self.report.room_cores - self.pending_cores


@dataclass(frozen=True, slots=True)
class _Pending:
    placement: Placement
    ask: GroupAsk
    cores: float


class Pool:
    """All nodes as last reported, less what was placed since. `nodes_max` is fixed at its start."""

    def __init__(self, nodes_max: int, grading_reserve_bytes: int = 0) -> None:
        self._grading_reserve_bytes = grading_reserve_bytes
        self._nodes: dict[NodeId, _Node] = {}
        self._places: list[_Node | None] = [None] * nodes_max
        self._free_places = list(range(nodes_max - 1, -1, -1))
        self._every: dict[Bucket, RoomTree] = {}
        self._largest = RoomTree(nodes_max)
        """What nodes would have if they were empty."""
        self._holding: dict[TemplateId, dict[Bucket, Holders]] = {}
        self._buckets: list[Bucket] = []
        self._pending: dict[PlacementId, _Pending] = {}
        self._placed = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def report(self, report: NodeReport, included: Collection[PlacementId] = ()) -> None:
        """A node's numbers, for the first time or anew, and the placements that are in them.

        Other placements under way stay taken off.
        """
        node = self._nodes.get(report.node_id)
        if node is None:
            node = _Node(report, self._free_places.pop(), None, Counter())
            self._nodes[report.node_id] = node
            self._places[node.place] = node
        else:
            self._unlist(node)
            for template in node.report.templates:
                _less(node.templates, template)
        for placement_id in included:
            self._forget(node, placement_id)
        for template in report.templates:
            node.templates[template] += 1
        node.report = report
        self._largest.put(node.place, report.largest_bytes, report.largest_cores)
        node.bucket = _bucket_of(report)
        self._list(node)

    def leave(self, node_id: NodeId) -> list[Placement]:
        """A node is gone; returns what was under way there and must be placed anew."""
        node = self._nodes.pop(node_id)
        self._unlist(node)
        self._largest.drop(node.place)
        self._places[node.place] = None
        self._free_places.append(node.place)
        lost = [one.placement for one in self._pending.values() if one.placement.node_id == node_id]
        for one in lost:
            del self._pending[one.placement_id]
        return lost

    def place(self, ask: GroupAsk) -> tuple[Placement, ...] | Refused:
        """Nodes for all members, their room taken; or why there are none, and nothing is taken."""
        assert 0 < ask.members <= MEMBERS_MAX
        parts: list[Placement] = []
        left = ask.members
        while left:
            part = self._best(ask, left)
            if part is None:
                refusal = self._refusal(ask)
                for one in parts:
                    self.cancel(one.placement_id)
                return refusal
            parts.append(part)
            left -= part.members
        return tuple(parts)

    def place_part(self, ask: GroupAsk) -> Placement | Refused:
        """The largest part that one node takes now; for groups that an empty pool would not take whole."""
        part = self._best(ask, ask.members)
        return self._refusal(ask) if part is None else part

    def empty_takes(self, ask: GroupAsk) -> int:
        """Members that the pool would take if it were empty, up to all. Looks at every node."""
        lent, taken = self._lent(ask), 0
        for node in self._nodes.values():
            report = node.report
            each = max(1.0, ask.expected_bytes + report.overhead_bytes)
            fits = (report.largest_bytes + lent - ask.template_bytes) / each
            if ask.expected_cores:
                fits = min(fits, report.largest_cores / ask.expected_cores)
            taken += max(0, int(fits + ROUNDING))
            if taken >= ask.members:
                return ask.members
        return taken

    def cancel(self, placement_id: PlacementId) -> None:
        """The placement will not be: its room is free again."""
        pending = self._pending[placement_id]
        node = self._nodes[pending.placement.node_id]
        _less(node.tenants, pending.ask.tenant)
        self._forget(node, placement_id)
        template = pending.ask.template
        if template not in node.templates:
            self._drop_holding(node, template)
        self._relist(node)

    def released(self, tenant: OrganizationId, node_id: NodeId) -> None:
        """A placement that was confirmed has ended; the room comes with the next report."""
        if node_id in self._nodes:
            _less(self._nodes[node_id].tenants, tenant)

    def room_of(self, node_id: NodeId) -> tuple[float, float]:
        """Bytes and cores of a node that are not placed on."""
        node = self._nodes[node_id]
        return node.room_bytes, node.room_cores

    def _best(self, ask: GroupAsk, members: int) -> Placement | None:
        """The whole by its siblings, or where it fits, else the largest part that does."""
        whole = self._near(ask, members) or self._fitting(ask, members)
        if whole is not None or members == 1:
            return whole
        for count in range(self._members_bound(ask, members - 1), 0, -1):
            part = self._fitting(ask, count)
            if part is not None:
                return part
        return None

    def _near(self, ask: GroupAsk, count: int) -> Placement | None:
        """So many members beside their siblings."""
        for node_id in ask.near:
            node = self._nodes.get(node_id)
            if node is None or node.bucket is None or node_id in ask.without:
                continue
            template = 0.0 if ask.template in node.templates else ask.template_bytes
            cost = count * (ask.expected_bytes + node.report.overhead_bytes) + template
            has_cores = node.room_cores >= count * ask.expected_cores
            if has_cores and node.room_bytes >= cost - self._lent(ask):
                return self._take(ask, count, cost, node)
        return None

    def _fitting(self, ask: GroupAsk, count: int) -> Placement | None:
        """So many members on the best node that takes them all."""
        for cost, rooms in self._tries(ask, count):
            node = self._first(ask, count, cost, rooms)
            if node is not None:
                return self._take(ask, count, cost, node)
        return None

    def _members_bound(self, ask: GroupAsk, members: int) -> int:
        """No node fits more than these: of each bucket by its roomiest node."""
        lent, holding = self._lent(ask), self._holding.get(ask.template, {})
        bound = 0
        for bucket in self._buckets:
            each = max(1.0, ask.expected_bytes + bucket[0])
            room, cores = self._every[bucket].most()
            fits = (room + lent - ask.template_bytes) / each
            if bucket in holding and fits < members:
                fits = max(fits, (holding[bucket].most()[0] + lent) / each)
            if ask.expected_cores:
                fits = min(fits, cores / ask.expected_cores)
            bound = max(bound, int(fits + ROUNDING))
        return min(members, bound)

    def _lent(self, ask: GroupAsk) -> float:
        return self._grading_reserve_bytes if ask.purpose is SandboxPurpose.GRADER else 0.0

    def _tries(self, ask: GroupAsk, count: int) -> Iterator[tuple[float, Rooms]]:
        """Buckets from the cheapest: by cost, then pressure. A template without pages is nowhere cheaper."""
        holding: Mapping[Bucket, Rooms] = {}
        if ask.template_bytes:
            holding = self._holding.get(ask.template, {})
        found: list[tuple[float, int, int, Rooms]] = []
        for index, bucket in enumerate(self._buckets):
            overhead_bytes, step = bucket
            each = count * (ask.expected_bytes + overhead_bytes)
            if bucket in holding:
                found.append((each, step, index, holding[bucket]))
            absent = each + ask.template_bytes
            found.append((absent, step, index, self._every[bucket]))
        found.sort(key=itemgetter(0, 1, 2))
        return ((cost, rooms) for cost, _, _, rooms in found)

    def _first(self, ask: GroupAsk, count: int, cost: float, rooms: Rooms) -> _Node | None:
        """Of the first fitting places the one with fewest placements of the tenant."""
        best: _Node | None = None
        need, cores = cost - self._lent(ask), count * ask.expected_cores
        place = rooms.first(need, cores)
        for _ in range(SPREAD_LOOKED_AT + len(ask.without)):
            if place is None:
                break
            node = self._places[place]
            assert node is not None, "a listed place has a node"
            if node.report.node_id in ask.without:
                place = rooms.first(need, cores, place + 1)
                continue
            if best is None or node.tenants[ask.tenant] < best.tenants[ask.tenant]:
                best = node
            if best.tenants[ask.tenant] == 0:
                break
            place = rooms.first(need, cores, place + 1)
        return best

    def _take(self, ask: GroupAsk, count: int, cost: float, node: _Node) -> Placement:
        self._placed += 1
        placement_id = PlacementId(self._placed)
        placement = Placement(placement_id, ask.group_id, node.report.node_id, count, cost)
        cores = count * ask.expected_cores
        self._pending[placement_id] = _Pending(placement, ask, cores)
        node.pending_bytes += cost
        node.pending_cores += cores
        node.tenants[ask.tenant] += 1
        node.templates[ask.template] += 1
        self._relist(node)
        return placement

    def _forget(self, node: _Node, placement_id: PlacementId) -> None:
        """The placement is under way no more; the indexes are the caller's."""
        pending = self._pending.pop(placement_id)
        assert pending.placement.node_id == node.report.node_id
        node.pending_bytes -= pending.placement.cost_bytes
        node.pending_cores -= pending.cores
        _less(node.templates, pending.ask.template)

    def _relist(self, node: _Node) -> None:
        """Room of a node changed, or what it holds."""
        if node.bucket is None:
            return
        room, cores, place = node.room_bytes, node.room_cores, node.place
        self._every[node.bucket].put(place, room, cores)
        for template in node.templates:
            if template not in node.listed:
                node.listed[template] = self._holders(template, node.bucket)
        for holders in node.listed.values():
            holders.put(place, room, cores)

    def _holders(self, template: TemplateId, bucket: Bucket) -> Holders:
        trees = self._holding.setdefault(template, {})
        if bucket not in trees:
            trees[bucket] = Holders(len(self._places))
        return trees[bucket]

    def _list(self, node: _Node) -> None:
        if node.bucket is None:
            return
        if node.bucket not in self._every:
            self._every[node.bucket] = RoomTree(len(self._places))
            insort(self._buckets, node.bucket)
        self._relist(node)

    def _unlist(self, node: _Node) -> None:
        if node.bucket is None:
            return
        self._every[node.bucket].drop(node.place)
        for template in list(node.listed):
            self._drop_holding(node, template)

    def _drop_holding(self, node: _Node, template: TemplateId) -> None:
        """The node does not hold the template; a template that nobody holds leaves no index."""
        holders = node.listed.pop(template, None)
        if holders is None or node.bucket is None:
            return
        holders.drop(node.place)
        if not len(holders):
            del self._holding[template][node.bucket]
            if not self._holding[template]:
                del self._holding[template]

    def _refusal(self, ask: GroupAsk) -> Refused:
        """By the first member that fits nowhere, those before it placed: what binds on the nearest node."""
        if not self._nodes:
            return Refused(Why.NO_NODE, Resource.MEMORY, ask.expected_bytes, 0.0)
        lent = self._lent(ask)
        able = [one for one in self._buckets if self._every[one].most()[0] > NONE]
        largest, widest = self._largest.most()
        overhead = min((bucket[0] for bucket in able), default=0)
        need = ask.template_bytes + ask.expected_bytes + overhead
        if need > largest + lent:
            return Refused(Why.NEVER_FITS, Resource.MEMORY, need, largest + lent)
        if ask.expected_cores > widest:
            return Refused(Why.NEVER_FITS, Resource.CPU, ask.expected_cores, widest)
        if not able:
            pressure = min(node.report.pressure for node in self._nodes.values())
            return Refused(Why.UNDER_PRESSURE, Resource.PRESSURE, pressure, RESUME_PRESSURE)
        return self._no_room(ask, able)

    def _no_room(self, ask: GroupAsk, able: list[Bucket]) -> Refused:
        """Every node lacks bytes or cores for one member."""
        lent = self._lent(ask)
        cores = [self._most_cores(need - lent, rooms) for need, rooms in self._asked(ask, able)]
        widest = max(cores, default=NONE)
        if widest > NONE:
            return Refused(Why.NO_ROOM, Resource.CPU, ask.expected_cores, widest)
        rooms_of = [(rooms.most()[0], need) for need, rooms in self._asked(ask, able)]
        room, need = max(rooms_of, key=lambda one: one[0] - one[1])
        is_kept = not lent and need <= room + self._grading_reserve_bytes
        why = Why.GRADING_RESERVE if is_kept else Why.NO_ROOM
        return Refused(why, Resource.MEMORY, need, room + lent)

    def _asked(self, ask: GroupAsk, able: list[Bucket]) -> Iterator[tuple[float, Rooms]]:
        """What one member needs of each index of nodes."""
        holding: Mapping[Bucket, Rooms] = self._holding.get(ask.template, {})
        for bucket in able:
            each = ask.expected_bytes + bucket[0]
            if bucket in holding:
                yield each, holding[bucket]
            yield each + ask.template_bytes, self._every[bucket]

    def _most_cores(self, need_bytes: float, rooms: Rooms) -> float:
        """Most cores of the first nodes with so many bytes; NONE without such a node."""
        most, place = NONE, rooms.first(need_bytes, NONE)
        for _ in range(LACKS_LOOKED_AT):
            if place is None:
                break
            node = self._places[place]
            assert node is not None, "a listed place has a node"
            most = max(most, node.room_cores)
            place = rooms.first(need_bytes, NONE, place + 1)
        return most


def _less(counter: Counter[T], key: T) -> None:
    """One less; no entry stays at nothing."""
    if counter[key] > 1:
        counter[key] -= 1
    else:
        del counter[key]


def _bucket_of(report: NodeReport) -> Bucket | None:
    """Where a node is listed; None while it takes nothing."""
    if not report.is_open or report.pressure >= STOP_PRESSURE:
        return None
    step = next(i for i, bound in enumerate(PRESSURE_STEPS) if report.pressure < bound)
    return report.overhead_bytes, step
