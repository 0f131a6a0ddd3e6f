"""Tenants 1:2:5 with full-weight jobs: whole engines in time slices, the swap's cost counted in."""

from random import Random

import pytest

from domain.ids import JobId
from scheduler.core.time_slices import SWITCH_SHARE, Switch, slices
from tests.simulation.tenants.whole_engines import WholeEngines

ONE, TWO, FIVE = (JobId(f"job_{name}") for name in ("one", "two", "five"))
WEIGHTS = {ONE: 1.0, TWO: 2.0, FIVE: 5.0}
SMALL = Switch(weight_bytes=16.4e9, link_bytes_per_s=50e9, fixed_s=2.0, drain_s=10.0)
"""8B from host memory."""
LARGE = Switch(weight_bytes=65.5e9, link_bytes_per_s=25e9, fixed_s=5.0, drain_s=20.0)
"""32B over the network."""
AWAY = (6000.0, 9000.0)
UNTIL_S = 30_000.0
ROUNDS = 10
"""A window in rounds: a slice is to whole engines what a turn is to shared ones."""

TOLERANCE = 0.10
"""Of each job's own share."""


def engines(seed: int, switch: Switch = SMALL) -> WholeEngines:
    world = WholeEngines(WEIGHTS, switch, Random(seed), away={TWO: [AWAY]})
    world.run(UNTIL_S)
    return world


def round_s(world: WholeEngines) -> float:
    return sum(slices(WEIGHTS, world.switch, world.longest_turn_s).values())


@pytest.mark.parametrize("switch", [SMALL, LARGE], ids=["8B", "32B"])
def test_shares_hold_over_windows_of_ten_rounds(switch: Switch) -> None:
    for seed in range(3):
        world = engines(seed, switch)
        errors = [error_from(world, begin) for begin in windows(world)]
        assert len(errors) >= 40
        assert max(errors) <= TOLERANCE, (seed, errors)


def windows(world: WholeEngines) -> list[float]:
    """Begins of all windows in which every job waits, a quarter of a round apart."""
    step, found = round_s(world) / 4, []
    for begin, end in ((0.0, AWAY[0]), (AWAY[1], UNTIL_S)):
        count = int((end - begin - ROUNDS * round_s(world)) // step) + 1
        found += [begin + step * index for index in range(count)]
    return found


def error_from(world: WholeEngines, begin: float) -> float:
    """Largest relative error of a job's share in the window that begins then."""
    seconds = world.seconds(begin, begin + ROUNDS * round_s(world))
    total = sum(seconds.values()) / sum(WEIGHTS.values())
    return max(abs(seconds[job] / (total * weight) - 1) for job, weight in WEIGHTS.items())


def test_switching_costs_no_more_than_its_part_of_the_time() -> None:
    world = engines(0)
    turns_s = sum(span.turns_s for span in world.spans)
    assert turns_s / world.now >= 1 - SWITCH_SHARE - 0.01
    assert world.idle_s == 0.0


def test_an_idle_job_s_time_is_lent_and_its_first_slice_comes_within_a_round() -> None:
    world = engines(1)
    lent = [span for span in world.spans if AWAY[0] + 30.0 < span.began < AWAY[1]]
    assert {span.job for span in lent} == {ONE, FIVE}
    first = next(s for s in world.spans if s.job == TWO and s.began >= AWAY[1])
    assert first.began - AWAY[1] <= round_s(world)


def test_a_slice_that_went_on_alone_ends_within_one_longest_turn_when_another_job_waits() -> None:
    world = WholeEngines(WEIGHTS, SMALL, Random(2), away={ONE: [(0, 5000)], TWO: [(0, 5000)]})
    world.run(6000.0)
    alone = world.spans[0]
    assert alone.job == FIVE
    assert 5000.0 <= alone.ended <= 5000.0 + world.longest_turn_s + SMALL.drain_s


def test_what_was_lent_beyond_a_slice_is_no_debt() -> None:
    world = WholeEngines(WEIGHTS, SMALL, Random(3), away={ONE: [(0, 5000)], TWO: [(0, 5000)]})
    world.run(12_000.0)
    after = ROUNDS * round_s(world)
    seconds = world.seconds(5030.0, 5030.0 + after)
    fair = after * 5 / 8
    assert seconds[FIVE] >= fair * (1 - TOLERANCE)
