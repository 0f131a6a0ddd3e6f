"""The pages that may go, in the order in which they go.

Only the end of a context leaves, so what is left is still a prefix. Inside the groups below the order is
that of `kv.eviction`.
"""

from collections.abc import Iterable

from kv.eviction import victims
from kv.rules import Eviction
from workers.rollout.embedded.pages.nodes import KvClass, Node


def order(
    leaves: Iterable[Node], rule: Eviction, now: float, *, demotes: bool = True
) -> list[Node]:
    """Leaves, the first to go first: those that somebody asked to keep go last.

    By class: unused and low before high, whatever the rank of a high one; by recency: as they come.
    """
    groups: tuple[list[Node], ...] = ([], [], [])
    for leaf in leaves:
        if leaf.is_kept(now):
            groups[2].append(leaf)
        elif rule is Eviction.CLASSES and leaf.kv_class is KvClass.HIGH_REF:
            groups[1].append(leaf)
        else:
            groups[0].append(leaf)
    return [leaf for group in groups for leaf in victims(group, rule, demotes=demotes)]
