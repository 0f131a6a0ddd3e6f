"""The page table of one engine: leases of turns over the radix tree.

    open -> (extend, grow, fill)* -> close
              park -> resume            the slot goes to a better turn, the pages stay the turn's own
              fetch -> arrived|failed   pages of an outer tier, usable once their content is there

free + evictable + locked == total after every operation (`audit.check`). One thread owns a table.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from domain.ids import RolloutId
from kv.rules import Eviction
from workers.rollout.embedded.pages.memory import PageMemory
from workers.rollout.embedded.pages.nodes import (
    PAGE_TOKENS,
    KvClass,
    Lease,
    Namespace,
    Node,
    common,
    digest_of,
    digests_of,
    pages_for,
    usable,
)
from workers.rollout.embedded.pages.tree import EvictReason, PageTree


class PageTable:
    """Every method leaves the accounting whole."""

    def __init__(
        self,
        pages: int,
        rule: Eviction = Eviction.CLASSES,
        on_branch: Callable[[int, int], None] = lambda source, target: None,
    ) -> None:
        """`on_branch` copies one page onto another."""
        self.tree = PageTree(pages, rule)
        self.on_branch = on_branch
        self.leases: dict[int, Lease] = {}
        self.hit_tokens: Counter[KvClass] = Counter()
        self.memory = PageMemory()
        self._keys = 0

    def open(
        self,
        rollout_id: RolloutId,
        namespace: Namespace,
        tokens: Sequence[int],
        now: float,
        lineage: str = "",
    ) -> Lease:
        """Lock what is there of a turn's context; its last token is always left to compute.

        A rollout that is older than the weights goes on over the pages it has, if they are of this lineage.
        """
        trajectory = self.tree.trajectory(rollout_id)
        trajectory.leases += 1
        self._keys += 1
        lease = Lease(self._keys, trajectory, namespace, lineage=lineage)
        self.leases[lease.key] = lease
        if not self._go_on(lease, tokens, now):
            self.extend(lease, digests_of(namespace, tokens[:-1]), now)
        self._branch(lease, tokens, now)
        lease.found = len(lease.nodes)
        return lease

    def extend(self, lease: Lease, digests: Sequence[bytes], now: float) -> int:
        """Take over pages that are there, also those that others computed meanwhile.

        `digests` are those of all whole pages that the turn wants; returns the tokens gained. Nothing is
        taken in the middle of a page.
        """
        at, place = divmod(lease.length, PAGE_TOKENS)
        if lease.is_private or place:
            return 0
        gained = 0
        for digest in digests[at:]:
            node = self.tree.index.get(digest)
            before = lease.nodes[at - 1] if at else None
            if node is None or not node.is_usable or node.parent is not before:
                break
            if at < len(lease.nodes):
                self._replace(lease, at, node, now)
            else:
                self._take(lease, node, now)
            self._count_hit(node, PAGE_TOKENS)
            at, gained = at + 1, gained + PAGE_TOKENS
            lease.length = at * PAGE_TOKENS
        return gained

    def missing(self, lease: Lease, digests: Sequence[bytes]) -> list[Node]:
        """Nodes that outer tiers hold, right behind the whole pages of the lease."""
        at = lease.length // PAGE_TOKENS
        found: list[Node] = []
        if lease.is_private:
            return found
        before = lease.nodes[at - 1] if at else None
        for digest in digests[at:]:
            node = self.tree.index.get(digest)
            if node is None or node.parent is not before or node.page is not None:
                break
            if node.copy is None or not node.copy.is_ready:
                break
            found.append(node)
            before = node
        return found

    def is_coming(self, lease: Lease, digests: Sequence[bytes]) -> bool:
        """Whether the lease's next page is on its way for another turn."""
        at, place = divmod(lease.length, PAGE_TOKENS)
        if place or lease.is_private or at >= len(digests):
            return False
        node = self.tree.index.get(digests[at])
        return node is not None and node.is_coming

    def grow(self, lease: Lease, tokens: int, reason: EvictReason, now: float) -> bool:
        """Have pages for so many tokens; False, and nothing changed, when there is no room for them."""
        wanted = pages_for(tokens) - len(lease.nodes)
        if wanted <= 0:
            return True
        if not self.tree.make_room(wanted, reason, now):
            return False
        for _ in range(wanted):
            self._add(lease, now)
        return True

    def fill(self, lease: Lease, tokens: Sequence[int], now: float) -> bool:
        """These tokens have keys now, behind the `length` before. Whether the block table changed.

        Full pages become findable; where another turn made the same page, that one is used by both.
        """
        has_changed, start = False, 0
        while start < len(tokens):
            at, place = divmod(lease.length, PAGE_TOKENS)
            node = lease.nodes[at]
            assert node.digest is None
            taken = tuple(tokens[start : start + PAGE_TOKENS - place])
            node.tokens = node.tokens[:place] + taken
            lease.length += len(taken)
            start += len(taken)
            if len(node.tokens) == PAGE_TOKENS:
                has_changed |= self._publish(lease, at, now)
        return has_changed

    def park(self, lease: Lease, now: float) -> None:
        """The turn leaves its slot; its pages stay its own and may go when room is needed."""
        assert not lease.is_parked
        self._stop_fetch(lease, now)
        self._remember(lease, lease.nodes)
        lease.is_parked = True
        lease.parked = [node.tokens for node in lease.nodes]
        self.tree.unlock(lease.nodes, now)

    def resume(self, lease: Lease, now: float) -> None:
        """The turn has a slot again: lock what is left of its pages."""
        assert lease.is_parked
        left = 0
        for node, tokens in zip(lease.nodes, lease.parked, strict=False):
            if not node.is_usable or node.tokens != tokens or self._is_written(node):
                break
            left += 1
        lease.is_parked = False
        del lease.nodes[left:]
        for node in lease.nodes:
            self.tree.lock(node, now)
        lease.length = min(lease.length, lease.room)
        lease.found = min(lease.found, left)

    def truncate(self, lease: Lease, tokens: int, now: float) -> None:
        """Give up the pages behind so many tokens, a whole number of pages."""
        assert tokens % PAGE_TOKENS == 0
        self._stop_fetch(lease, now)
        self._cut(lease, tokens // PAGE_TOKENS, now)

    def close(self, lease: Lease, keep: bool, now: float) -> None:
        """The turn ended. Kept pages wait for the next one; else what only it computed is free at once."""
        self._stop_fetch(lease, now)
        own = [] if keep else lease.nodes[lease.found :]
        self._remember(lease, lease.nodes if keep else lease.nodes[: lease.found])
        if not lease.is_parked:
            self.tree.unlock(lease.nodes, now)
        for node in reversed(own):
            is_needed = node.locks or node.references or node.children
            if node.page is not None and not is_needed:
                self.tree.drop(node)
        lease.nodes, lease.length, lease.is_parked = [], 0, True
        lease.trajectory.leases -= 1
        del self.leases[lease.key]
        self.tree.forget_if_empty(lease.trajectory)

    def fork(self, source: RolloutId, target: RolloutId) -> None:
        """The target goes on from where the source is: both refer to the same pages."""
        origin = self.tree.trajectories.get(source)
        if origin is not None and source != target:
            branch = self.tree.trajectory(target)
            self.tree.refer(branch, list(origin.path))
            branch.is_private, branch.lineage = origin.is_private, origin.lineage
            self.tree.forget_if_empty(branch)

    def release(self, rollout_id: RolloutId) -> None:
        """The rollout ended: pages that nobody can find are free, the others become unused."""
        trajectory = self.tree.trajectories.get(rollout_id)
        if trajectory is not None:
            self.tree.refer(trajectory, [])
            trajectory.kept_until = 0.0
            self.tree.forget_if_empty(trajectory)

    def retire(
        self, is_stale: Callable[[Namespace], bool], now: float, *, keeps_paths: bool = True
    ) -> None:
        """Weights changed: pages of these namespaces are never found by their digests again.

        Open turns keep theirs, private from now on, and with `keeps_paths` so do rollouts between two
        turns, as far as theirs are on the device; all others are free.
        """
        kept: set[int] = set()
        for lease in self.leases.values():
            if is_stale(lease.namespace):
                self._stop_fetch(lease, now)
                lease.is_private = True
                kept.update(node.key for node in lease.nodes)
        for trajectory in self.tree.trajectories.values() if keeps_paths else ():
            if trajectory.path and is_stale(trajectory.path[0].namespace):
                trajectory.is_private = True
                kept.update(node.key for node in usable(trajectory.path))
        stale = [node for node in self.tree.nodes.values() if is_stale(node.namespace)]
        for node in stale:
            self.tree.hide(node)
        for node in reversed(stale):
            if node.key in kept:
                self.tree.drop_if_lost(node)
            elif node.key in self.tree.nodes:
                self.tree.drop(node)

    def fetch(self, lease: Lease, nodes: Sequence[Node], now: float) -> list[int]:
        """Take device pages for nodes that `missing` gave; none of them when there is no room."""
        self.truncate(lease, lease.length // PAGE_TOKENS * PAGE_TOKENS, now)
        for node in nodes:
            node.is_coming = True  # an outer tier gives none of them up for what leaves meanwhile
        if not self.tree.make_room(len(nodes), EvictReason.FETCH, now):
            for node in nodes:
                node.is_coming = False
            return []
        for node in nodes:
            self.tree.place(node)
            self._take(lease, node, now)
        return [node.page for node in nodes if node.page is not None]

    def arrived(self, lease: Lease) -> None:
        """The content of a fetch is in its pages; the copies are given up."""
        for node in lease.nodes:
            if node.is_coming:
                node.is_coming = False
                self._count_hit(node, PAGE_TOKENS)
                self.tree.give_up_copy(node)
        lease.length = lease.room
        lease.found = len(lease.nodes)

    def failed(self, lease: Lease, now: float) -> None:
        """The content did not come: these nodes are lost, their tokens are computed anew."""
        coming = [node for node in lease.nodes if node.is_coming]
        self._cut(lease, lease.nodes.index(coming[0]), now)
        for node in reversed(coming):
            node.is_coming = False
            if node.key in self.tree.nodes:
                self.tree.drop(node)

    def exported(self, rollout_id: RolloutId, namespace: Namespace) -> list[Node]:
        """The rollout's full pages at these weights, from the first on, in whichever tier they lie."""
        trajectory = self.tree.trajectories.get(rollout_id)
        pages: list[Node] = []
        for node in [] if trajectory is None else trajectory.path:
            is_there = node.is_usable or node.is_stored
            if not is_there or node.digest is None or node.namespace != namespace:
                break
            pages.append(node)
        return pages

    def adopt(
        self, rollout_id: RolloutId, namespace: Namespace, tokens: Sequence[int], now: float
    ) -> tuple[int, list[int]]:
        """Take in the whole pages of a context from elsewhere: the first that is new here, and where to.

        No pages when there is no room. The content must be in them before anything else is asked.
        """
        whole = len(tokens) // PAGE_TOKENS * PAGE_TOKENS
        known = self.tree.trajectories.get(rollout_id)
        if known is not None and known.is_private:
            # What comes was made by one set of weights: it does not hang behind what was not.
            self.tree.refer(known, [])
        lease = self.open(rollout_id, namespace, (*tokens[:whole], 0), now)
        first = lease.length // PAGE_TOKENS
        has_room = self.grow(lease, whole, EvictReason.IMPORT, now)
        if has_room:
            self.fill(lease, tokens[lease.length : whole], now)
        pages = [node.page for node in lease.nodes[first:] if node.page is not None]
        self.close(lease, has_room, now)
        return first, pages if has_room else []

    def lost(self, node: Node) -> None:
        """An outer tier could not store or keep this node."""
        if node.page is None and node.key in self.tree.nodes:
            self.tree.bury(node)

    def _is_written(self, node: Node) -> bool:
        """Whether a running turn goes on in this page: a fork of the rollout that left it."""
        return len(node.tokens) < PAGE_TOKENS and any(
            not lease.is_parked and node in lease.nodes for lease in self.leases.values()
        )

    def _go_on(self, lease: Lease, tokens: Sequence[int], now: float) -> bool:
        """Take over the whole pages of a private path as far as this context is theirs.

        False, and nothing taken, where its first page is not.
        """
        trajectory = lease.trajectory
        is_own = trajectory.is_private and trajectory.lineage == lease.lineage
        path = usable(trajectory.path) if is_own else []
        if not path or len(tokens) <= len(path[0].tokens) or not _begins(tokens, path[0]):
            return False
        lease.is_private, lease.namespace = True, path[0].namespace
        for node in path:
            left = tokens[lease.length : -1]
            if len(node.tokens) < PAGE_TOKENS or not _begins(left, node):
                break
            self._take(lease, node, now)
            self._count_hit(node, PAGE_TOKENS)
            lease.length += PAGE_TOKENS
        return True

    def _branch(self, lease: Lease, tokens: Sequence[int], now: float) -> None:
        """Use the part of a page that the rollout's last turn shares with this one."""
        at, path = len(lease.nodes), lease.trajectory.path
        before = lease.nodes[-1] if lease.nodes else None
        if at >= len(path) or path[at].namespace != lease.namespace:
            return
        node = path[at]
        count = common(node.tokens, tokens[at * PAGE_TOKENS : len(tokens) - 1])
        if not node.is_usable or node.parent is not before or not count:
            return
        is_shared = node.digest is not None or node.locks or len(node.references) > 1
        if not is_shared and not node.children and lease.trajectory.leases == 1:
            self._take(lease, node, now)
        elif not self._copy_page(lease, node, now):
            return
        self._count_hit(node, count)
        lease.nodes[-1].tokens = node.tokens[:count]
        lease.length += count

    def _copy_page(self, lease: Lease, node: Node, now: float) -> bool:
        self.tree.lock(node, now)
        has_room = self.tree.make_room(1, EvictReason.BRANCH, now)
        if has_room:
            target = self._add(lease, now)
            assert target.page is not None
            assert node.page is not None
            self.on_branch(node.page, target.page)
        self.tree.unlock([node], now)
        return has_room

    def _add(self, lease: Lease, now: float) -> Node:
        parent = lease.nodes[-1] if lease.nodes else None
        node = self.tree.add(lease.namespace, parent, now)
        lease.nodes.append(node)
        return node

    def _publish(self, lease: Lease, at: int, now: float) -> bool:
        node = lease.nodes[at]
        before = lease.namespace.root if at == 0 else lease.nodes[at - 1].digest
        if lease.is_private or before is None:
            return False
        digest = digest_of(before, node.tokens)
        self.memory.note(digest)
        other = self.tree.index.get(digest)
        if other is not None and other.is_usable:
            self._replace(lease, at, other, now)
            return True
        if other is not None and other.page is None:
            self.tree.bury(other)
            other = None
        if other is None:
            node.digest = digest
            self.tree.index[digest] = node
        return False

    def _replace(self, lease: Lease, at: int, node: Node, now: float) -> None:
        """Use another node with the same content in place of the lease's own."""
        own = lease.nodes[at]
        lease.nodes[at] = node
        self.tree.lock(node, now)
        if at + 1 < len(lease.nodes):
            self.tree.detach(lease.nodes[at + 1])
            self.tree.attach(lease.nodes[at + 1], node)
        self.tree.unlock([own], now)

    def _take(self, lease: Lease, node: Node, now: float) -> None:
        self.tree.lock(node, now)
        lease.nodes.append(node)

    def _remember(self, lease: Lease, nodes: Sequence[Node]) -> None:
        path = [node for node in nodes if node.tokens and node.is_alive]
        self.tree.refer(lease.trajectory, path)
        lease.trajectory.is_private = lease.is_private
        lease.trajectory.lineage = lease.lineage

    def _cut(self, lease: Lease, count: int, now: float) -> None:
        tail = lease.nodes[count:]
        del lease.nodes[count:]
        lease.length = min(lease.length, lease.room)
        lease.found = min(lease.found, count)
        if not lease.is_parked:
            self.tree.unlock(tail, now)

    def _stop_fetch(self, lease: Lease, now: float) -> None:
        """The turn does not wait for its fetch: the copies stay where they are."""
        coming = [node for node in lease.nodes if node.is_coming]
        if lease.is_parked or not coming:
            return
        self._cut(lease, lease.nodes.index(coming[0]), now)
        for node in reversed(coming):
            node.is_coming = False
            self.tree.withdraw(node)

    def _count_hit(self, node: Node, tokens: int) -> None:
        self.hit_tokens[node.kv_class] += tokens


def _begins(tokens: Sequence[int], node: Node) -> bool:
    return tuple(tokens[: len(node.tokens)]) == node.tokens
