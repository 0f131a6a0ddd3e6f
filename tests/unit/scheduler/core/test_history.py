"""Running means and estimates."""

from domain.events import Remaining
from scheduler.core.history import (
    GROUP_FADE,
    LEAST_TURNS_LEFT,
    MEMORY,
    PRIOR_TOKENS_PER_TURN,
    TOKENS_PER_SECOND,
    History,
    Mean,
)


def test_a_mean_of_few_values_is_exact_and_leans_on_its_prior() -> None:
    mean = Mean()
    for value in (2.0, 4.0):
        mean.add(value)
    assert mean.value == 3.0
    assert 3.0 < mean.blend(10.0) < 10.0


def test_a_mean_forgets_what_is_long_ago() -> None:
    mean = Mean()
    for _ in range(1000):
        mean.add(1.0)
    for _ in range(3 * int(MEMORY)):
        mean.add(5.0)
    assert mean.value > 4.5


def test_an_estimate_falls_with_each_turn_and_never_to_nothing() -> None:
    history = History()
    estimates = [history.remaining_s(turns, 3) for turns in (0, 1, 2, 50)]
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[-1] > 0
    assert LEAST_TURNS_LEFT > 0


def test_tool_seconds_are_part_of_an_estimate() -> None:
    slow, fast = History(), History()
    for _ in range(9):
        slow.add_rollout(2, 20, 30.0)
        fast.add_rollout(2, 20, 0.0)
    assert slow.remaining_s(0, 2) > fast.remaining_s(0, 2)


def test_the_longest_group_fades() -> None:
    history = History()
    history.add_group(10.0)
    history.add_group(1.0)
    assert history.longest_group_s == 10.0 * GROUP_FADE


def test_a_learned_estimate_is_compared_in_the_same_seconds() -> None:
    history = History()
    assert history.seconds_of(Remaining(100.0, 300.0, 7.0, 3.0)) == 100.0 / TOKENS_PER_SECOND + 7.0


def test_without_a_predictor_only_the_prior_speaks() -> None:
    history = History()
    history.add_rollout(40, 4_000, 90.0)
    assert history.prior_s(1, 4) == History().prior_s(1, 4)
    assert history.prior_s(9, 4) == LEAST_TURNS_LEFT * PRIOR_TOKENS_PER_TURN / TOKENS_PER_SECOND
