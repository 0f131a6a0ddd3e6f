"""An index over nodes: the first, by place, with enough room in bytes and in cores.

A tree of maxima. An update touches a branch, a search prunes what lacks either; where both bind on
different nodes it may look at more of them, and only then.
"""

from bisect import bisect_left, insort
from typing import Final, Protocol

NONE: Final = -1e300
"""Room of a node that is not in this index."""


class Rooms(Protocol):
    """Places with room."""

    def most(self) -> tuple[float, float]:
        """Bytes and cores, each of the place that has most."""
        ...

    def first(self, need_bytes: float, need_cores: float, begin: int = 0) -> int | None:
        """The lowest place from `begin` on with room for both."""
        ...


class RoomTree:
    """Places 0 to `places - 1`, each with room or absent."""

    __slots__ = ("_bytes", "_cores", "_leaves")

    def __init__(self, places: int) -> None:
        self._leaves = 1 << max(0, (places - 1).bit_length())
        self._bytes = [NONE] * (2 * self._leaves)
        self._cores = [NONE] * (2 * self._leaves)

    def most(self) -> tuple[float, float]:
        """Bytes and cores, each of the place that has most."""
        return self._bytes[1], self._cores[1]

    def put(self, place: int, room_bytes: float, room_cores: float) -> None:
        """Room of a place from now on."""
        at = place + self._leaves
        room, cores = self._bytes, self._cores
        room[at], cores[at] = room_bytes, room_cores
        at >>= 1
        while at:
            left, right = 2 * at, 2 * at + 1
            most = room[left] if room[left] >= room[right] else room[right]
            wide = cores[left] if cores[left] >= cores[right] else cores[right]
            if most == room[at] and wide == cores[at]:
                return
            room[at], cores[at] = most, wide
            at >>= 1

    def drop(self, place: int) -> None:
        """The place is not in this index any more."""
        self.put(place, NONE, NONE)

    def first(self, need_bytes: float, need_cores: float, begin: int = 0) -> int | None:
        """The lowest place from `begin` on with room for both."""
        room, cores, leaves = self._bytes, self._cores, self._leaves
        if begin >= leaves:
            return None
        at = begin + leaves
        while True:
            if room[at] >= need_bytes and cores[at] >= need_cores:
                if at >= leaves:
                    return at - leaves
                at *= 2
                continue
            while at & 1:
                at >>= 1
            if at == 0:
                return None
            at += 1


FEW: Final = 32
"""Up to so many places are walked through; most templates are held by fewer nodes, and a tree for each
of them would take as many leaves as the pool has nodes."""


class Holders:
    """The same questions over few places, and over many once there are many."""

    __slots__ = ("_places", "_rooms", "_size", "_tree")

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: list[int] = []
        self._rooms: dict[int, tuple[float, float]] = {}
        self._tree: RoomTree | None = None

    def __len__(self) -> int:
        return len(self._rooms)

    def most(self) -> tuple[float, float]:
        """Bytes and cores, each of the place that has most."""
        if self._tree is not None:
            return self._tree.most()
        rooms = self._rooms.values()
        return (
            max((room for room, _ in rooms), default=NONE),
            max((cores for _, cores in rooms), default=NONE),
        )

    def put(self, place: int, room_bytes: float, room_cores: float) -> None:
        """Room of a place from now on."""
        if place not in self._rooms:
            insort(self._places, place)
        self._rooms[place] = (room_bytes, room_cores)
        if self._tree is not None:
            self._tree.put(place, room_bytes, room_cores)
        elif len(self._rooms) > FEW:
            self._tree = RoomTree(self._size)
            for one, room in self._rooms.items():
                self._tree.put(one, *room)

    def drop(self, place: int) -> None:
        """The place is not among them any more."""
        if self._rooms.pop(place, None) is None:
            return
        del self._places[bisect_left(self._places, place)]
        if len(self._rooms) <= FEW // 2:
            self._tree = None
        elif self._tree is not None:
            self._tree.drop(place)

    def first(self, need_bytes: float, need_cores: float, begin: int = 0) -> int | None:
        """The lowest place from `begin` on with room for both."""
        if self._tree is not None:
            return self._tree.first(need_bytes, need_cores, begin)
        for place in self._places[bisect_left(self._places, begin) :]:
            room, cores = self._rooms[place]
            if room >= need_bytes and cores >= need_cores:
                return place
        return None
