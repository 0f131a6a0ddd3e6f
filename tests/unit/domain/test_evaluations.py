"""Numbers of an evaluation on several environments: each apart, the total, the one selected."""

import math
from collections.abc import Mapping, Sequence

import pytest

from domain.estimates import Stratum, estimates, total_estimates, total_mean
from domain.evaluations import Component, EnvironmentResult, EvaluatedUse, EvaluationResult


def part(
    name: str,
    rewards: Sequence[Sequence[float]],
    *,
    weight: float = 1.0,
    components: Mapping[str, Component] | None = None,
    full_marks: float = 1.0,
) -> EnvironmentResult:
    """What an evaluation says of one environment."""
    use = EvaluatedUse(name, f"{name}@1", weight)
    return EnvironmentResult(use, len(rewards), 0, rewards, components or {}, full_marks)


EASY = part("easy", [[1.0, 1.0], [1.0, 0.0]], components={"right": Component(0.75, 4)})
HARD = part("hard", [[0.0, 0.0]], weight=2.0, components={"calls": Component(3.0, 2)})
BOTH = EvaluationResult([EASY, HARD])


def test_the_total_counts_each_task_with_the_weight_of_its_environment() -> None:
    assert BOTH.score == pytest.approx((1 * 3.0 + 2 * 0.0) / (1 * 4 + 2 * 2))
    found = {one.name: one for one in BOTH.estimates}
    assert found["avg@2"].value == pytest.approx((1.0 + 0.5 + 2 * 0.0) / (1 + 1 + 2))
    assert found["pass@2"].value == pytest.approx((1.0 + 1.0 + 2 * 0.0) / (1 + 1 + 2))
    assert found["avg@2"].tasks == 3


def test_a_rollout_passes_at_the_full_marks_of_its_own_environment() -> None:
    whole = part("whole", [[1.0, 3.0], [4.0, 1.0]], full_marks=4.0)
    half = part("half", [[0.5, 0.0]], full_marks=0.5)
    assert {one.name: one.value for one in whole.estimates}["pass@2"] == 0.5
    assert {one.name: one.value for one in half.estimates}["pass@2"] == 1.0
    both = {one.name: one.value for one in EvaluationResult([whole, half]).estimates}
    assert both["pass@2"] == pytest.approx(2 / 3)
    assert both["pass@1"] == pytest.approx((0.0 + 0.5 + 0.5) / 3)


def test_one_environment_is_its_own_total() -> None:
    alone = EvaluationResult([EASY])
    assert alone.score == EASY.score == 0.75
    assert alone.estimates == estimates(EASY.rewards)


def test_equal_weights_give_the_mean_over_the_tasks_of_all() -> None:
    rewards = [[0.0, 1.0], [1.0, 1.0], [0.5, 0.25]]
    whole = estimates(rewards)
    parts = total_estimates([Stratum(2.5, rewards[:2]), Stratum(2.5, rewards[2:])])
    assert [one.name for one in parts] == [one.name for one in whole]
    for one, other in zip(parts, whole, strict=True):
        assert one.value == pytest.approx(other.value)
        assert one.low <= one.value <= one.high


def test_the_interval_of_a_total_is_that_of_strata() -> None:
    """By hand: weights of the strata 1/2 each, variances of their means 1/4 and 1."""
    strata = [Stratum(1.0, [[2.0], [3.0]]), Stratum(1.0, [[5.0], [7.0]])]
    (average, _) = total_estimates(strata)
    spread = math.sqrt(0.25 * 0.25 + 0.25 * 1.0)
    assert average.value == pytest.approx(4.25)
    assert average.high - average.value == pytest.approx(1.959963984540054 * spread)


def test_an_environment_without_a_score_leaves_the_total_to_the_others() -> None:
    silent = part("silent", [[], []], weight=9.0)
    result = EvaluationResult([EASY, silent])
    assert (result.score, silent.score, silent.estimates) == (0.75, None, ())
    assert EvaluationResult([silent, silent]).score is None
    assert EvaluationResult([silent]).estimates == ()
    assert total_mean([]) is None


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (None, 0.375),
        ("score", 0.375),
        ("pass@2", 0.5),
        ("easy/score", 0.75),
        ("hard/avg@2", 0.0),
        ("right", 0.75),
        ("calls", 3.0),
        ("easy/right", 0.75),
        ("easy/calls", None),
        ("pass@4", None),
        ("gone/score", None),
    ],
)
def test_what_checkpoints_are_compared_by_is_found_by_name(
    wanted: str | None, value: float | None
) -> None:
    assert BOTH.selected(wanted) == (None if value is None else pytest.approx(value))
