"""The counters of keys as the port shows them."""

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeVar

from domain.kv_stats import KvStats
from kv.ranks import RankClass
from workers.rollout.embedded.keys import Keys
from workers.rollout.embedded.pages.nodes import KvClass, Place
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.tiers.outer import Leaving
from workers.rollout.embedded.tiers.stores import FetchFailure

WAYS: Final = (
    (Place.DEVICE, Place.HOST),
    (Place.DEVICE, Place.DISK),
    (Place.HOST, Place.DISK),
    (Place.HOST, Place.DEVICE),
    (Place.DISK, Place.DEVICE),
)
"""Between which tiers pages move."""


Label = TypeVar("Label", bound=StrEnum)


def key_stats(keys: Keys, retractions: int) -> KvStats:
    """Read beside the running thread: each number is right, not all at once."""
    tree, tiers = keys.table.tree, keys.tiers
    evicted = tree.evicted.copy()
    stats = KvStats(
        pages={Place.DEVICE.value: tree.total},
        used_pages={Place.DEVICE.value: tree.total - len(tree.free)},
        locked_pages=tree.locked,
        hit_tokens={one.value: keys.table.hit_tokens[one] for one in KvClass},
        recomputed_tokens=keys.recomputed_tokens,
        restored_tokens=keys.restored_tokens,
        evicted_pages={
            reason.value: sum(evicted[reason, one] for one in KvClass) for reason in EvictReason
        },
        evicted_classes={
            one.value: sum(evicted[reason, one] for reason in EvictReason) for one in KvClass
        },
        retractions=retractions,
        slot_starts={_label(name): count for name, count in keys.starts.items()},
        slot_wait_s={_label(name): seconds for name, seconds in keys.wait_s.items()},
    )
    if tiers is None:
        return stats
    counters, sizes = tiers.counters, tiers.sizes
    return replace(
        stats,
        pages={**stats.pages, "host": sizes.host_pages, "disk": sizes.disk_pages},
        used_pages={
            **stats.used_pages,
            "host": tiers.used(Place.HOST),
            "disk": tiers.used(Place.DISK),
        },
        left_pages=_counts(Leaving, counters.pages_left),
        moved_bytes={f"{a.value}_{b.value}": counters.bytes_moved[a, b] for a, b in WAYS},
        fetch_failures=_counts(FetchFailure, counters.fetch_failures),
        store_failures=counters.store_failures,
    )


def retained(keys: Keys) -> int:
    """Rollouts whose keys are kept and none of whose turns runs or has lost its slot."""
    # Copied in one go: the engine's thread changes the table meanwhile.
    return sum(1 for one in list(keys.table.tree.trajectories.values()) if not one.leases)


def _counts(labels: type[Label], counter: Counter[Label]) -> dict[str, int]:
    return {one.value: counter[one] for one in labels}


def _label(name: RankClass) -> str:
    return name.name.lower()
