"""The accounting of a page table, derived anew from its nodes: what a test checks after every operation."""

from collections import Counter

from workers.rollout.embedded.pages.nodes import PAGE_TOKENS, Node
from workers.rollout.embedded.pages.table import PageTable


def check(table: PageTable) -> None:
    """Assert that every page is free, evictable or locked, and that each count says what is true."""
    tree, nodes = table.tree, list(table.tree.nodes.values())
    held = [node.page for node in nodes if node.page is not None]
    locked = sum(1 for node in nodes if node.locks)
    evictable = sum(1 for node in nodes if node.page is not None and not node.locks)
    assert len(tree.free) + evictable + locked == tree.total
    assert (locked, evictable) == (tree.locked, tree.evictable)
    assert sorted([*tree.free, *held]) == list(range(tree.total)), (
        "a page is nobody's or two nodes'"
    )
    for node in nodes:
        _check_node(node)
    assert {n.key for n in nodes if _is_leaf(n)} == set(tree.leaves)
    assert {n.digest: n.key for n in nodes if n.digest} == {d: n.key for d, n in tree.index.items()}
    _check_locks(table)
    _check_references(table)


def _check_node(node: Node) -> None:
    assert node.is_alive, "a node without keys is still known"
    assert node.parent is None or node.parent.children[node.key] is node
    assert node.parent is None or node.parent.namespace == node.namespace
    on_device = [child for child in node.children.values() if child.page is not None]
    assert len(on_device) == node.device_children
    assert not on_device or node.page is not None, "a page on the device behind one that is not"
    assert not node.locks or node.parent is None or node.parent.locks, "locks cover whole paths"
    assert node.digest is None or len(node.tokens) == PAGE_TOKENS
    assert not node.is_coming or (node.copy is not None and node.locks == 1)
    assert node.locks or node.digest or node.references, "a page that nobody can find"


def _is_leaf(node: Node) -> bool:
    return node.page is not None and not node.locks and not node.device_children


def _check_locks(table: PageTable) -> None:
    wanted: Counter[int] = Counter()
    for lease in table.leases.values():
        if lease.is_parked:
            continue
        wanted.update(node.key for node in lease.nodes)
        assert lease.length <= lease.room
        known = sum(len(node.tokens) for node in lease.nodes if not node.is_coming)
        assert known == lease.length
        pairs = zip(lease.nodes, lease.nodes[1:], strict=False)
        assert all(after.parent is before for before, after in pairs)
    assert wanted == Counter({n.key: n.locks for n in table.tree.nodes.values() if n.locks})


def _check_references(table: PageTable) -> None:
    named = {
        (node.key, rollout_id)
        for node in table.tree.nodes.values()
        for rollout_id in node.references
    }
    paths = {
        (node.key, rollout_id)
        for rollout_id, trajectory in table.tree.trajectories.items()
        for node in trajectory.path
    }
    assert named == paths
    open_turns = Counter(lease.trajectory.rollout_id for lease in table.leases.values())
    for rollout_id, trajectory in table.tree.trajectories.items():
        assert trajectory.leases == open_turns[rollout_id]
        assert trajectory.leases or trajectory.path, "a rollout without pages and turns is known"
