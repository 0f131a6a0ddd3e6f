"""How alike the rewards of a task's rollouts are, and what a larger group's members are drawn from."""

from random import Random

import pytest

from simulation.bootstrap import DrawnGroups
from simulation.likeness import correlation, share_of_own
from simulation.rates import Waits
from simulation.recorded import RecordedGroup, RecordedRollout, RecordedTurn


def test_rewards_that_depend_on_the_task_alone_are_alike() -> None:
    assert correlation([(1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]) == pytest.approx(1.0)


def test_rewards_that_do_not_depend_on_the_task_are_not() -> None:
    chance = Random(5)
    groups = [[float(chance.random() < 0.3) for _ in range(8)] for _ in range(400)]
    assert correlation(groups) == pytest.approx(0.0, abs=0.03)


def test_the_correlation_of_a_mixture_is_found_also_in_groups_of_unequal_size() -> None:
    chance = Random(6)
    groups = []
    for number in range(2000):
        task = chance.gauss(0.0, 1.0)
        groups.append([task + chance.gauss(0.0, 3.0**0.5) for _ in range(4 + number % 5)])
    assert correlation(groups) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("groups", [[], [(1.0, 0.0)], [(0.5,), (0.7,)], [(1.0, 1.0), (1.0, 1.0)]])
def test_where_nothing_tells_them_apart_a_member_is_like_its_own(
    groups: list[tuple[float, ...]],
) -> None:
    assert correlation(groups) == 1.0


def test_the_more_members_were_seen_the_more_the_next_is_like_them() -> None:
    assert share_of_own(0, 0.5) == 0.0
    assert share_of_own(1, 0.5) == pytest.approx(0.5)
    assert share_of_own(3, 0.5) == pytest.approx(0.75)
    assert (share_of_own(3, 0.0), share_of_own(3, 1.0)) == (0.0, 1.0)


def group(ordinal: int, reward: float) -> RecordedGroup:
    """Two members with one reward, and a prompt as long as the ordinal."""
    turns = (RecordedTurn(ordinal, ordinal, 5, 0.1, 0.0),)
    return RecordedGroup(
        ordinal, 0.0, 1.0, 1.0, (RecordedRollout("h", 0.0, 1.0, turns, reward),) * 2
    )


@pytest.mark.parametrize(("alike", "flat"), [(1.0, 60), (0.0, 3)])
def test_a_larger_group_is_flat_less_often_unless_all_its_members_are_alike(
    alike: float, flat: int
) -> None:
    groups = [group(1, 0.0), group(2, 1.0)]
    nothing = Waits(0.0, 0.0, 0.0)
    waits = {(n, place): nothing for n in (1, 2) for place in range(2)}
    drawn = DrawnGroups(groups, waits, {1: 0.0, 2: 0.0}, alike, 6, 3)
    found = [drawn.group(ordinal) for ordinal in range(60)]
    assert sum(one.is_flat for one in found) in range(flat - 3, flat + 5)
    # Whoever a member was drawn from, it has its group's prompt.
    assert all(len({member.turns[0].new_tokens for member in one.members}) == 1 for one in found)
