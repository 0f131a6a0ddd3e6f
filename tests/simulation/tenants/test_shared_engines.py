"""Tenants 1:2:5 with LoRA jobs on shared engines: shares hold over windows of ten longest turns."""

from random import Random

import pytest

from domain.ids import OrganizationId
from tests.simulation.tenants.shared_engines import SharedEngines

ONE, TWO, FIVE = (OrganizationId(f"org_{name}") for name in ("one", "two", "five"))
WEIGHTS = {ONE: 1.0, TWO: 2.0, FIVE: 5.0}
WINDOWS = 10.0
"""A window in longest turns."""

TOLERANCE = 0.05
"""Of each tenant's own share, not of the whole."""

BURSTS = [(400.0, 800.0), (1050.0, 1062.0)]
UNTIL_S = 1500.0


def engines(seed: int, slots: int = 16, **changes: object) -> SharedEngines:
    away = {TWO: BURSTS}
    return SharedEngines(WEIGHTS, slots, Random(seed), away=away, **changes)  # type: ignore[arg-type]


def worst_error(world: SharedEngines) -> tuple[float, int]:
    """Largest relative error over all windows in which everybody is there, and how many windows."""
    window, worst, count = WINDOWS * world.longest_turn_s, 0.0, 0
    begins = [0.0, *(back for _, back in BURSTS)]
    ends = [*(left for left, _ in BURSTS), UNTIL_S - world.longest_turn_s]
    for begin, end in zip(begins, ends, strict=True):
        while begin + window <= end:
            seconds = world.seconds(begin, begin + window)
            for tenant, weight in WEIGHTS.items():
                fair = sum(seconds.values()) * weight / sum(WEIGHTS.values())
                worst = max(worst, abs(seconds[tenant] / fair - 1))
            begin, count = begin + world.longest_turn_s / 4, count + 1
    return worst, count


@pytest.mark.parametrize("slots", [8, 16, 48])
def test_shares_hold_in_every_window_in_which_all_wait(slots: int) -> None:
    for seed in range(3):
        world = engines(seed, slots)
        world.run(UNTIL_S)
        worst, windows = worst_error(world)
        assert windows >= 90
        assert worst <= TOLERANCE, (seed, worst)


def test_no_slot_is_idle_while_anyone_waits() -> None:
    world = engines(0)
    world.run(1100.0)
    assert world.idle_s == 0.0


def test_the_others_use_what_a_tenant_leaves_and_give_it_back_within_one_longest_turn() -> None:
    world = engines(1)
    world.run(700.0)
    assert world.running[TWO] == 0
    assert world.running.total() == world.slots
    world.run(800.0 + world.longest_turn_s)
    assert world.running[TWO] >= world.slots * 2 / 8


def test_a_tenant_that_was_away_gets_no_more_than_its_share_afterwards() -> None:
    world = engines(2)
    world.run(1100.0)
    seconds = world.seconds(800.0, 1000.0)
    assert seconds[TWO] / sum(seconds.values()) <= 2 / 8 * (1 + TOLERANCE)


def test_a_guarantee_is_given_before_shares_by_weight() -> None:
    world = engines(3, guaranteed={ONE: 6.0})
    world.run(400.0)
    seconds = world.seconds(100.0, 300.0)
    assert seconds[ONE] / sum(seconds.values()) == pytest.approx(6 / 16, rel=TOLERANCE)
    rest = seconds[TWO] + seconds[FIVE]
    assert seconds[TWO] / rest == pytest.approx(2 / 7, rel=TOLERANCE)


def test_the_same_seed_gives_the_same_slots() -> None:
    first, second = engines(4), engines(4)
    for world in (first, second):
        world.run(300.0)
    assert first.used == second.used
