"""Which page leaves the device for which tier, and what comes back.

    device -- store --> host -- move --> disk      a page lies in one place only
    device <-- fetch -- host, disk                 usable once its content is in the arena

A page that leaves goes to the host's memory, then to the file; where both are full the least useful copy
gives way, by the rule that evicts from the device. It goes nowhere when computing it anew is measured to be
cheaper (`kv.reload`), or when too many transfers are under way. A fetch that failed, came short, with
another checksum or late is as if the page had never been kept: its tokens are computed anew, and counted.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, assert_never

import numpy as np
import torch

from kv.reload import Source, cheaper
from workers.rollout.embedded.arena import KvArena
from workers.rollout.embedded.pages.nodes import Copy, Lease, Node, Place
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.tiers.order import HostOrder
from workers.rollout.embedded.tiers.stores import (
    Bytes,
    FetchError,
    FetchFailure,
    Stores,
    TierSizes,
)
from workers.rollout.embedded.tiers.transfers import Fetch, Move, Spot, Store, Transfers

SMOOTHING: Final = 0.1
"""Of measured rates: they follow a change within some ten transfers."""

HOST_FREE_SHARE: Final = 0.125
"""Of the host tier that moves to the file keep free: pages leave the device in bursts."""

RECLAIM_SHARE: Final = 0.03
"""Of all copies that go at once when both tiers are full."""

MOVES_MAX: Final = 8
"""Pages that move to the file per step: the queue stays open for what leaves the device."""

FETCH_LATE_S: Final = 1.0
"""A fetch that takes longer is given up: by then the engine has computed any context it can hold."""


class Leaving(StrEnum):
    """Where a page goes that leaves the device."""

    HOST = "host"
    DISK = "disk"
    DROPPED = "dropped"
    """Both tiers are full of what is worth more."""
    CHEAPER = "cheaper"
    """Computing it anew is."""
    BUSY = "busy"
    """Too many transfers are under way."""
    OFF = "off"
    """The tiers were switched off after a defect."""


@dataclass(slots=True, eq=False)
class Coming:
    """A fetch for one turn."""

    lease: Lease
    nodes: Sequence[Node]
    fetch: Fetch
    until: float

    @property
    def is_wanted(self) -> bool:
        """Whether the turn still waits for it; nodes are never fetched twice into the same page."""
        return self.nodes[0].is_coming and self.nodes[0] in self.lease.nodes


@dataclass(slots=True)
class TierCounters:
    """Since the start of the engine."""

    bytes_moved: Counter[tuple[Place, Place]] = field(default_factory=Counter)
    pages_left: Counter[Leaving] = field(default_factory=Counter)
    fetch_failures: Counter[FetchFailure] = field(default_factory=Counter)
    store_failures: int = 0


class OuterTiers:
    """Owned by the decode thread; the copying is done beside it."""

    def __init__(
        self,
        arena: KvArena,
        table: PageTable,
        sizes: TierSizes,
        clock: Callable[[], float],
    ) -> None:
        # First of all: without room for the pages nothing else of their number can be had.
        self._stores = Stores(sizes, arena.shape.page_bytes)
        self.arena = arena
        self.table = table
        self.sizes = sizes
        self.clock = clock
        self.counters = TierCounters()
        self.compute_s = 0.0
        """Measured seconds of computing one page anew; 0: not known."""
        self._fetch_s: dict[Place, float] = {}
        self._free = {
            Place.HOST: list(range(sizes.host_pages - 1, -1, -1)),
            Place.DISK: list(range(sizes.disk_pages - 1, -1, -1)),
        }
        self._leaving: list[tuple[Node, Copy, torch.Tensor]] = []
        self._storing: dict[int, list[tuple[Node, Copy]]] = {}
        self._moving: dict[int, tuple[Node, Copy]] = {}
        self._coming: dict[int, Coming] = {}
        self._transfers = Transfers(self._stores)
        table.tree.on_leave = self._leave
        self._in_host = HostOrder(table.tree)
        table.tree.on_copy_unused = self._give_up
        table.tree.on_copy_changed = self._in_host.note

    def used(self, place: Place) -> int:
        """Pages in an outer tier, those on the way there among them."""
        total = self.sizes.host_pages if place is Place.HOST else self.sizes.disk_pages
        return total - len(self._free[place])

    @property
    def is_open(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._transfers.open or self._leaving)

    @property
    def is_off(self) -> bool:
        """Whether a defect ended all transfers: nothing is kept and nothing comes back any more."""
        return bool(self._transfers.failure)

    def flush(self) -> None:
        """Send off what left the device since the last time."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        content = torch.cat([page for _, _, page in leaving]).numpy()
        spots = [Spot(copy.place, copy.slot) for _, copy, _ in leaving]
        store = Store(spots, content)
        self._storing[id(store)] = [(node, copy) for node, copy, _ in leaving]
        self._transfers.ask(store)

    def collect(self, wait_s: float = 0.0) -> None:
        """Take in what is done and give up what is late."""
        transfers = self._transfers.poll(wait_s)
        for done in transfers:
            match done:
                case Store():
                    self._stored(done)
                case Fetch():
                    self._fetched(done)
                case Move():
                    self._moved(done)
                case _ as unreachable:
                    assert_never(unreachable)
        self._give_up_late()
        if not self.is_off:
            self._spill_to_disk()
        elif transfers:
            self._drop_copies()

    def fetch(self, lease: Lease, digests: Sequence[bytes]) -> bool:
        """Have what outer tiers hold of this turn's context brought back; False: compute it."""
        nodes = self.table.missing(lease, digests)
        if (
            not nodes
            or self.is_off
            or self._transfers.is_full
            or not self._is_worth_fetching(nodes)
        ):
            return False
        now = self.clock()
        if not self.table.fetch(lease, nodes, now):
            return False
        for node in nodes:
            self._in_host.note(node)
        spots = [_spot(node.copy) for node in nodes if node.copy is not None]
        fetch = Fetch(spots)
        self._coming[id(fetch)] = Coming(lease, nodes, fetch, now + FETCH_LATE_S)
        self.flush()
        self._transfers.ask(fetch)
        return True

    def read(self, nodes: Sequence[Node]) -> list[Bytes]:
        """Pages that leave this engine, at once and without taking room; up to the first that cannot be had.

        A copy that is ready is written to by nobody until this thread gives its slot away.
        """
        pages: list[Bytes] = []
        for node in () if self.is_off else nodes:
            assert node.copy is not None
            spot = _spot(node.copy)
            try:
                pages.append(self._stores.read(spot.place, spot.slot, spot.checksum))
            except FetchError as error:
                self.counters.fetch_failures[error.failure] += 1
                break
        return pages

    def close(self) -> None:
        """Stop, and remove the file."""
        self._transfers.close()
        self._stores.close()

    def _leave(self, node: Node) -> None:
        assert node.page is not None
        left = self.counters.pages_left
        if self.is_off:
            left[Leaving.OFF] += 1
            return
        if self._transfers.is_full:
            left[Leaving.BUSY] += 1
            return
        if not self._is_worth_keeping():
            left[Leaving.CHEAPER] += 1
            return
        spot = self._room_for(node)
        if spot is None:
            left[Leaving.DROPPED] += 1
            return
        left[Leaving(spot.place.value)] += 1
        node.copy = Copy(spot.place, spot.slot)
        self._leaving.append((node, node.copy, self.arena.read([node.page])))

    @property
    def reload_s(self) -> float | None:
        """Measured seconds of bringing a page back from the first tier; None where it takes none, and before
        the first one."""
        if self.is_off:
            return None
        return self._fetch_s.get(Place.HOST if self.sizes.host_pages else Place.DISK)

    def _is_worth_keeping(self) -> bool:
        back_s = self.reload_s
        if not back_s or not self.compute_s:
            return True
        return cheaper(back_s, 0.0, self.compute_s) is Source.RELOAD

    def _is_worth_fetching(self, nodes: Sequence[Node]) -> bool:
        if not self.compute_s:
            return True
        reload_s = sum(self._fetch_s.get(n.copy.place, 0.0) for n in nodes if n.copy is not None)
        queued_s = self._transfers.open * max(self._fetch_s.values(), default=0.0)
        return cheaper(reload_s, queued_s, len(nodes) * self.compute_s) is Source.RELOAD

    def _room_for(self, node: Node) -> Spot | None:
        for place in (Place.HOST, Place.DISK):
            if self._free[place]:
                return Spot(place, self._free[place].pop())
        return self._room_for(node) if self._reclaim(node) else None

    def _reclaim(self, node: Node) -> bool:
        """Give up copies that are worth less than this page, many at once: each look is at all of them."""
        tree = self.table.tree
        ends = [one for one in tree.nodes.values() if _is_end(one)]
        ordered = tree.in_order([*ends, node], self.clock())
        total = self.sizes.host_pages + self.sizes.disk_pages
        worse = ordered[: min(ordered.index(node), max(int(total * RECLAIM_SHARE), 1))]
        for one in worse:
            self.table.lost(one)
        return bool(worse)

    def _spill_to_disk(self) -> None:
        if not self.sizes.host_pages or not self._free[Place.DISK]:
            return
        wanted = int(self.sizes.host_pages * HOST_FREE_SHARE) - len(self._free[Place.HOST])
        wanted = min(wanted - len(self._moving), MOVES_MAX)
        if wanted <= 0:
            return
        moving = {id(node) for node, _ in self._moving.values()}
        for node in self._in_host.first(wanted, self.clock()):
            if self._transfers.is_full or not self._free[Place.DISK] or node.copy is None:
                return
            if id(node) in moving:
                continue
            target = Spot(Place.DISK, self._free[Place.DISK].pop())
            move = Move(_spot(node.copy), target)
            self._moving[id(move)] = (node, node.copy)
            self._transfers.ask(move)

    def _drop_copies(self) -> None:
        """Forget what nobody can fetch any more, ends first."""
        nodes = self.table.tree.nodes
        while ends := [one for one in nodes.values() if _is_end(one)]:
            for one in ends:
                self.table.lost(one)

    def _give_up(self, node: Node) -> None:
        copy = node.copy
        assert copy is not None
        self._in_host.discard(node)
        self._free[copy.place].append(copy.slot)
        if not copy.is_ready:
            self._leaving = [one for one in self._leaving if one[1] is not copy]

    def _stored(self, store: Store) -> None:
        waiting = self._storing.pop(id(store))
        for (node, copy), checksum in zip(waiting, store.checksums, strict=True):
            if node.copy is not copy:
                continue
            if checksum is None:
                self.counters.store_failures += 1
                self.table.lost(node)
                continue
            copy.checksum, copy.is_ready = checksum, True
            self._in_host.note(node)
            self._count(Place.DEVICE, copy.place)

    def _moved(self, move: Move) -> None:
        node, copy = self._moving.pop(id(move))
        self.counters.store_failures += move.checksum is None
        if node.copy is not copy or node.is_coming or move.checksum is None:
            self._free[Place.DISK].append(move.target.slot)
            return
        self._free[Place.HOST].append(copy.slot)
        copy.place, copy.slot, copy.checksum = Place.DISK, move.target.slot, move.checksum
        self._in_host.note(node)
        self._count(Place.HOST, Place.DISK)

    def _fetched(self, fetch: Fetch) -> None:
        coming = self._coming.pop(id(fetch), None)
        if coming is None or not coming.is_wanted:
            return
        if fetch.content is None:
            assert fetch.failure is not None
            self._fail(coming, fetch.failure)
            return
        places = {spot.place for spot in fetch.spots}
        self.arena.write(
            [node.page for node in coming.nodes if node.page is not None],
            torch.from_numpy(np.ascontiguousarray(fetch.content)),
        )
        for spot in fetch.spots:
            self._count(spot.place, Place.DEVICE)
        slowest = Place.DISK if Place.DISK in places else Place.HOST
        per_page_s = fetch.seconds / len(fetch.spots)
        known_s = self._fetch_s.get(slowest, per_page_s)
        self._fetch_s[slowest] = known_s + SMOOTHING * (per_page_s - known_s)
        self.table.arrived(coming.lease)

    def _give_up_late(self) -> None:
        if not self._coming:
            return
        now = self.clock()
        for key, coming in list(self._coming.items()):
            if now > coming.until:
                del self._coming[key]
                if coming.is_wanted:
                    self._fail(coming, FetchFailure.LATE)

    def _fail(self, coming: Coming, failure: FetchFailure) -> None:
        self.counters.fetch_failures[failure] += len(coming.fetch.spots)
        self.table.failed(coming.lease, self.clock())

    def _count(self, source: Place, target: Place) -> None:
        self.counters.bytes_moved[source, target] += self.arena.shape.page_bytes


def _spot(copy: Copy) -> Spot:
    return Spot(copy.place, copy.slot, copy.checksum)


def _is_end(node: Node) -> bool:
    """Whether a copy may go: nobody waits for it, and none behind it loses its beginning."""
    is_away = node.page is None and node.copy is not None and node.copy.is_ready
    return is_away and not node.children and not node.is_coming
