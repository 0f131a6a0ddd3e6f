"""The radix tree: nodes, who refers to them, which are locked, and which leave the device.

    free      -- add, place  -->  locked
    locked    -- unlock      -->  evictable, or free when nobody can find it any more
    evictable -- lock        -->  locked;  -- evict -->  free, its content to an outer tier or lost

Locks cover whole paths from the root, so below an unlocked node nothing is locked and everything that is
evictable can be evicted, leaf by leaf.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from domain.ids import RolloutId
from kv.rules import Eviction
from workers.rollout.embedded.pages.leaves import order
from workers.rollout.embedded.pages.nodes import KvClass, Namespace, Node, Trajectory


class EvictReason(StrEnum):
    """What room was made for."""

    PROMPT = "prompt"
    GROWTH = "growth"
    FETCH = "fetch"
    BRANCH = "branch"
    IMPORT = "import"


def _nothing_leaves(node: Node) -> None:
    """Without outer tiers, what leaves the device is lost."""


class PageTree:
    """Nodes and free pages. Callers keep to the rule of whole paths."""

    def __init__(
        self,
        pages: int,
        rule: Eviction,
        on_leave: Callable[[Node], None] = _nothing_leaves,
        on_copy_unused: Callable[[Node], None] = _nothing_leaves,
        on_copy_changed: Callable[[Node], None] = _nothing_leaves,
    ) -> None:
        """`on_leave` sees a node about to leave the device, its page still whole, and may give it a copy
        in an outer tier; `on_copy_unused` a node whose copy nobody will ask for; `on_copy_changed` one with
        a copy that others refer to than before, or that nobody fetches any more."""
        self.total = pages
        self.rule = rule
        self.demotes = True
        """Whether high pages go by rank (`kv.rules`); else by recency."""
        self.on_leave = on_leave
        self.on_copy_unused = on_copy_unused
        self.on_copy_changed = on_copy_changed
        self.free: list[int] = list(range(pages - 1, -1, -1))
        self.nodes: dict[int, Node] = {}
        self.index: dict[bytes, Node] = {}
        self.leaves: dict[int, Node] = {}
        self.trajectories: dict[RolloutId, Trajectory] = {}
        self.locked = 0
        self.evicted: Counter[tuple[EvictReason, KvClass]] = Counter()
        self._keys = 0

    @property
    def evictable(self) -> int:
        """Pages that hold keys and that no running turn needs."""
        return self.total - len(self.free) - self.locked

    def trajectory(self, rollout_id: RolloutId) -> Trajectory:
        """The trajectory, known from now on."""
        return self.trajectories.setdefault(rollout_id, Trajectory(rollout_id))

    def in_order(self, nodes: Iterable[Node], now: float) -> list[Node]:
        """Nodes, the first to go first."""
        return order(nodes, self.rule, now, demotes=self.demotes)

    def stored(self, digests: Sequence[bytes]) -> list[Node]:
        """Nodes of a context from its first page on, wherever they are."""
        found: list[Node] = []
        for digest in digests:
            node = self.index.get(digest)
            if node is None or (found and node.parent is not found[-1]):
                break
            found.append(node)
        return found

    def add(self, namespace: Namespace, parent: Node | None, now: float) -> Node:
        """A new node on a free page, locked once."""
        self._keys += 1
        node = Node(self._keys, namespace, None, None)
        self.nodes[node.key] = node
        self.attach(node, parent)
        self.place(node)
        self.lock(node, now)
        return node

    def lock(self, node: Node, now: float) -> None:
        """A running turn reads it."""
        assert node.page is not None
        self.locked += not node.locks
        node.locks += 1
        node.last_used = max(node.last_used, now)
        self._note_leaf(node)

    def unlock(self, nodes: Sequence[Node], now: float) -> None:
        """From the end, so that what nobody can find is free before its parent is looked at."""
        for node in reversed(nodes):
            assert node.locks > 0
            node.locks -= 1
            node.last_used = max(node.last_used, now)
            if node.locks:
                continue
            self.locked -= 1
            self._note_leaf(node)
            self.drop_if_lost(node)

    def refer(self, trajectory: Trajectory, path: list[Node]) -> None:
        """The trajectory refers to these nodes and no longer to those before."""
        before, trajectory.path = trajectory.path, path
        for node in path:
            self._refer(node, trajectory)
        kept = {node.key for node in path}
        for node in reversed(before):
            if node.key not in kept:
                if node.references.pop(trajectory.rollout_id, None) and node.copy is not None:
                    self.on_copy_changed(node)
                self.drop_if_lost(node)

    def unrefer(self, node: Node) -> None:
        """Nobody refers to the node any more."""
        referring, node.references = list(node.references.values()), {}
        for trajectory in referring:
            trajectory.path.remove(node)
            self.forget_if_empty(trajectory)

    def forget_if_empty(self, trajectory: Trajectory) -> None:
        """A rollout that has no page and no turn here is unknown."""
        if not trajectory.leases and not trajectory.path:
            self.trajectories.pop(trajectory.rollout_id, None)

    def hide(self, node: Node) -> None:
        """Nobody finds it by its digest from now on."""
        if node.digest is not None and self.index.get(node.digest) is node:
            del self.index[node.digest]
        node.digest = None

    def drop(self, node: Node) -> None:
        """Free a node and whatever hangs below it; nothing of that is locked."""
        for one in reversed(_subtree(node)):
            if one.page is not None:
                self._unplace(one)
            self._remove(one)

    def bury(self, node: Node) -> None:
        """A node that is not on the device loses its copy, and those behind it theirs."""
        for one in reversed(_subtree(node)):
            assert one.page is None
            self._remove(one)

    def drop_if_lost(self, node: Node) -> None:
        """Free a node that no turn reads, nobody finds and nobody refers to."""
        is_findable = node.digest is not None or node.references
        if node.is_alive and not node.locks and not is_findable:
            self.drop(node)

    def give_up_copy(self, node: Node) -> None:
        """Its content is elsewhere, or of no more use."""
        if node.copy is not None:
            self.on_copy_unused(node)
            node.copy = None

    def make_room(self, count: int, reason: EvictReason, now: float) -> bool:
        """Have so many free pages; False, and nothing evicted, when running turns hold too many."""
        if count > len(self.free) + self.evictable:
            return False
        while len(self.free) < count:
            self._evict(count - len(self.free), reason, now)
        return True

    def place(self, node: Node) -> None:
        """Give the node a free page."""
        node.page = self.free.pop()
        if node.parent is not None:
            node.parent.device_children += 1
            self._note_leaf(node.parent)
        self._note_leaf(node)

    def withdraw(self, node: Node) -> None:
        """Take the page back from a node whose content is in an outer tier."""
        assert node.copy is not None
        self._unplace(node)
        self.on_copy_changed(node)

    def attach(self, node: Node, parent: Node | None) -> None:
        """Hang the node below another one."""
        node.parent = parent
        if parent is not None:
            parent.children[node.key] = node
            parent.device_children += node.page is not None
            self._note_leaf(parent)

    def detach(self, node: Node) -> None:
        """Take the node off its parent."""
        parent, node.parent = node.parent, None
        if parent is not None:
            del parent.children[node.key]
            parent.device_children -= node.page is not None
            self._note_leaf(parent)

    def _refer(self, node: Node, trajectory: Trajectory) -> None:
        is_new = trajectory.rollout_id not in node.references
        node.references[trajectory.rollout_id] = trajectory
        if is_new and node.copy is not None:
            self.on_copy_changed(node)

    def _remove(self, node: Node) -> None:
        self.hide(node)
        self.give_up_copy(node)
        self.detach(node)
        self.unrefer(node)
        del self.nodes[node.key]

    def _evict(self, count: int, reason: EvictReason, now: float) -> None:
        """Up to so many pages, at least one: whole ends of the contexts that the rule names first."""
        ordered = self.in_order(self.leaves.values(), now)
        assert ordered, "pages may go, and none is at the end of a context"
        for leaf in ordered:
            node: Node | None = leaf
            group = self._group(leaf)
            while node is not None and node.key in self.leaves and self._group(node) == group:
                above = node.parent
                self._leave(node, reason)
                node, count = above, count - 1
                if not count:
                    return

    def _group(self, node: Node) -> tuple[KvClass, int, float]:
        """Nodes of one path that the rule would name one after the other."""
        by_time = self.rule is Eviction.RECENCY or node.is_unused
        return node.kv_class, node.rank, node.last_used if by_time else 0.0

    def _leave(self, node: Node, reason: EvictReason) -> None:
        self.evicted[reason, node.kv_class] += 1
        if node.digest is not None and not node.is_unused:
            self.on_leave(node)
        self._unplace(node)
        if node.copy is None:
            self.bury(node)

    def _unplace(self, node: Node) -> None:
        assert node.page is not None
        assert not node.locks
        assert not node.device_children
        self.free.append(node.page)
        node.page = None
        if node.parent is not None:
            node.parent.device_children -= 1
            self._note_leaf(node.parent)
        self._note_leaf(node)

    def _note_leaf(self, node: Node) -> None:
        if node.page is not None and not node.locks and not node.device_children:
            self.leaves[node.key] = node
        else:
            self.leaves.pop(node.key, None)


def _subtree(node: Node) -> list[Node]:
    """The node and all below it, parents before their children."""
    found = [node]
    for one in found:
        found.extend(one.children.values())
    return found
