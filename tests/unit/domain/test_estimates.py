"""avg@k and pass@k: exact values, and intervals that hold what they promise."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.estimates import TOLERANCE, Estimate, estimates, pass_at
from venusrl._evaluation import run


def named(rewards: list[list[float]], full_marks: float = 1.0) -> dict[str, Estimate]:
    return {one.name: one for one in estimates(rewards, full_marks)}


@given(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))
)
def test_pass_at_is_the_share_of_draws_that_hold_a_success(case: tuple[int, int, int]) -> None:
    n, successes, k = case
    draws = list(combinations([index < successes for index in range(n)], k))
    assert pass_at(n, successes, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_values_are_means_over_tasks_not_over_rollouts() -> None:
    found = named([[1.0, 1.0, 0.0, 0.0], [0.0]])
    assert found["avg@4"].value == pytest.approx(0.25)
    assert found["pass@1"].value == pytest.approx(0.25)
    assert (found["pass@4"].value, found["pass@4"].tasks) == (1.0, 1)


def test_sizes_are_powers_of_two_and_the_largest() -> None:
    assert [one.name for one in estimates([[0.0] * 6])] == [
        "avg@6", "pass@1", "pass@2", "pass@4", "pass@6",
    ]  # fmt: skip
    assert [one.name for one in estimates([[0.5]])] == ["avg@1", "pass@1"]


def test_a_task_without_a_score_is_no_zero_and_none_at_all_is_nothing() -> None:
    assert named([[1.0], []])["avg@1"].value == 1.0
    assert estimates([[], []]) == ()
    assert estimates([]) == ()


def test_part_of_the_marks_is_no_success() -> None:
    assert named([[0.99, 0.5]])["pass@2"].value == 0.0


@pytest.mark.parametrize(
    ("full_marks", "reward", "passes"),
    [
        (4.0, 1.0, False),
        (4.0, 3.999, False),
        (4.0, 4.0, True),
        (0.5, 0.49, False),
        (0.5, 0.5, True),
        (1.0, sum([0.1] * 6) + 0.4 - 1e-12, True),
        (1.0, 1.0 - 2 * TOLERANCE, False),
        (0.0, -0.5, False),
        (0.0, 0.0, True),
    ],
)
def test_a_success_is_the_full_marks_of_its_environment(
    full_marks: float, reward: float, passes: bool
) -> None:
    assert named([[reward, -9.0]], full_marks)["pass@2"].value == float(passes)


def test_a_rollout_passes_within_the_tolerance_of_evaluations_on_a_laptop() -> None:
    assert run.TOLERANCE == TOLERANCE


def test_an_interval_at_the_edge_is_not_a_point() -> None:
    """Wilson for 0 of 10: 0 to 0.2775 (Agresti and Coull 1998)."""
    found = named([[0.0]] * 10)["pass@1"]
    assert found.low == 0.0
    assert found.high == pytest.approx(0.2775, abs=1e-4)


def test_rewards_beyond_zero_and_one_have_a_symmetric_interval() -> None:
    found = named([[-2.0], [4.0], [1.0]])["avg@1"]
    assert found.value == pytest.approx(1.0)
    assert found.high - 1.0 == pytest.approx(1.0 - found.low)
    assert found.high > 1.0


@given(st.lists(st.lists(st.floats(0, 1), max_size=5), max_size=12))
def test_values_lie_inside_their_intervals_and_those_inside_the_rewards(
    rewards: list[list[float]],
) -> None:
    for one in estimates(rewards):
        assert 0.0 <= one.low <= one.value + 1e-12
        assert one.value - 1e-12 <= one.high <= 1.0


@pytest.mark.parametrize(("tasks", "k"), [(40, 4), (150, 2)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(tasks: int, k: int) -> None:
    """Each task has its own chance; over 400 evaluations the truth is inside 92 to 98 % of them."""
    random = Random(5)
    inside = 0
    for _ in range(400):
        chances = [random.betavariate(1.0, 2.0) for _ in range(tasks)]
        rewards = [[float(random.random() < p) for _ in range(k)] for p in chances]
        found = named(rewards)["pass@1"]
        inside += found.low <= 1 / 3 <= found.high
    assert 0.92 <= inside / 400 <= 0.985
