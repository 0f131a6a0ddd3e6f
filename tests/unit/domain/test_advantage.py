"""Advantages: formulas by hand, and no signal where there is none."""

import math

import pytest

from domain.advantage import (
    GRPO_EPSILON,
    ZERO_VARIANCE_TOLERANCE,
    AdvantageKind,
    group_advantages,
)


def test_grpo_divides_by_the_sample_deviation_and_epsilon() -> None:
    result = group_advantages(AdvantageKind.GRPO, [1.0, 0.0, 0.0, 0.0])
    scale = 0.5 + GRPO_EPSILON
    assert result.values == pytest.approx((0.75 / scale, *(-0.25 / scale,) * 3), abs=1e-15)
    assert not result.zero_variance


def test_dr_grpo_only_centres() -> None:
    result = group_advantages(AdvantageKind.DR_GRPO, [1.0, 0.0, 0.0, 0.0])
    assert result.values == (0.75, -0.25, -0.25, -0.25)


@pytest.mark.parametrize("kind", list(AdvantageKind))
@pytest.mark.parametrize(
    "rewards", [[], [1.0], [0.95] * 8, [0.1 + 0.2, 0.3], [1e9, 1e9], [0.0, ZERO_VARIANCE_TOLERANCE]]
)
def test_equal_rewards_and_small_groups_have_no_signal(
    kind: AdvantageKind, rewards: list[float]
) -> None:
    result = group_advantages(kind, rewards)
    assert result.values == (0.0,) * len(rewards)
    assert result.zero_variance


@pytest.mark.parametrize("kind", list(AdvantageKind))
def test_advantages_sum_to_nothing_and_keep_the_order(kind: AdvantageKind) -> None:
    rewards = [3.0, -1e9, 0.25, 7.5, 1e9]
    values = group_advantages(kind, rewards).values
    assert math.fsum(values) == pytest.approx(0.0, abs=1e-3)
    assert sorted(range(5), key=lambda i: values[i]) == sorted(range(5), key=lambda i: rewards[i])


def test_epsilon_is_an_option() -> None:
    small = group_advantages(AdvantageKind.GRPO, [1.0, 0.0], epsilon=1e-4).values
    assert small == pytest.approx((0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_a_defect(value: float) -> None:
    with pytest.raises(AssertionError):
        group_advantages(AdvantageKind.GRPO, [0.0, value])


def test_rloo_compares_each_reward_with_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 0.5, 0.25]
    result = group_advantages(AdvantageKind.RLOO, rewards)
    others = [(sum(rewards) - reward) / 3 for reward in rewards]
    expected = [reward - other for reward, other in zip(rewards, others, strict=True)]
    assert result.values == pytest.approx(expected, abs=1e-15)
