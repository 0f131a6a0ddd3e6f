"""The page table under random work: every page is accounted for, every page found is the right one."""

import pytest

from kv.rules import Eviction
from tests.property.paged import OPS, World

SEEDS = (1, 2, 3, 4, 5)


def played(seed: int, rule: Eviction, operations: int) -> World:
    world = World(seed, rule)
    world.play(operations)
    world.drain()
    return world


@pytest.mark.parametrize("rule", list(Eviction))
def test_every_page_is_free_or_evictable_or_locked_after_each_operation(rule: Eviction) -> None:
    played(0, rule, 2_500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_so_it_is_after_each_of_a_hundred_thousand(seed: int) -> None:
    world = played(seed, Eviction.CLASSES, 100_000)
    for operation in {*OPS, "found", "kept", "shared", "migrated from outside"}:
        assert world.counts[operation] >= 50, operation
