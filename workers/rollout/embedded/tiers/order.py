"""Which pages of the host's memory go to the file first, without looking at all of them.

Pages are filed by who refers to them: inside such a group nothing but use or age orders them, whatever
becomes of ranks and classes meanwhile. What is looked at are the first pages of each group, at most one
group for each set of rollouts; the order is that by which pages leave the device (`pages.leaves`).
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from domain.ids import RolloutId
from kv.rules import Eviction
from workers.rollout.embedded.pages.nodes import Node, Place
from workers.rollout.embedded.pages.tree import PageTree

Referring = frozenset[RolloutId]


def is_in(node: Node, place: Place) -> bool:
    """Whether it lies there, whole, and nobody fetches it."""
    copy = node.copy
    return copy is not None and copy.is_ready and copy.place is place and not node.is_coming


@dataclass(slots=True)
class Group:
    """Pages to which the same rollouts refer, in both orders that a rule may ask for."""

    by_use: list[tuple[float, int]] = field(default_factory=list)
    by_key: list[int] = field(default_factory=list)


class HostOrder:
    """Told of every page that comes to the host's memory or leaves it, or gets other references."""

    def __init__(self, tree: PageTree) -> None:
        self._tree = tree
        self._groups: dict[Referring, Group] = {}
        self._filed: dict[int, tuple[Referring, float]] = {}

    def note(self, node: Node) -> None:
        """File it anew, or no longer. While it is filed nobody uses it: its last use stays what it is."""
        self.discard(node)
        if not is_in(node, Place.HOST):
            return
        referring = frozenset(node.references)
        group = self._groups.setdefault(referring, Group())
        insort(group.by_use, (node.last_used, node.key))
        insort(group.by_key, node.key)
        self._filed[node.key] = referring, node.last_used

    def discard(self, node: Node) -> None:
        """It is elsewhere from now on."""
        filed = self._filed.pop(node.key, None)
        if filed is None:
            return
        referring, last_used = filed
        group = self._groups[referring]
        del group.by_use[bisect_left(group.by_use, (last_used, node.key))]
        del group.by_key[bisect_left(group.by_key, node.key)]
        if not group.by_key:
            del self._groups[referring]

    def first(self, count: int, now: float) -> list[Node]:
        """So many pages, the first to go first: the beginning of the order of all of them."""
        heads = {
            key: referring
            for referring in self._groups
            for key in self._beginning(referring, 1)
        }  # fmt: skip
        ordered = self._in_order(heads, now)
        groups = list(dict.fromkeys(heads[node.key] for node in ordered))[:count]
        keys = [key for referring in groups for key in self._beginning(referring, count)]
        return self._in_order(dict.fromkeys(keys), now)[:count]

    def _in_order(self, keys: Iterable[int], now: float) -> list[Node]:
        return self._tree.in_order([self._tree.nodes[key] for key in keys], now)

    def _beginning(self, referring: Referring, count: int) -> list[int]:
        """The first of a group: by use where the rule goes by it, else as they were made; or by either."""
        group, tree = self._groups[referring], self._tree
        goes_by_use = tree.rule is Eviction.RECENCY or not referring
        used = [key for _, key in group.by_use[:count]]
        if goes_by_use:
            return used
        made = group.by_key[:count]
        return made if tree.demotes else [*made, *used]
