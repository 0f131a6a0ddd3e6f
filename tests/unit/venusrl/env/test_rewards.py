"""Declarations of rewards, group rewards and metrics."""

from collections.abc import Sequence

import pytest

from venusrl.env import Environment, Rollout, Value, group_reward, metric, reward
from venusrl.env.rewards import METRIC_TIMEOUT_S, REWARD_TIMEOUT_S, ComponentSpec


class Graded(Environment):
    @reward(weight=2.0, timeout_s=5)
    async def correct(self, rollout: Rollout) -> Value:
        return 1.0

    @group_reward(weight=0.2)
    async def rank(self, rollouts: Sequence[Rollout]) -> Sequence[Value]:
        return [0.0] * len(rollouts)

    @metric
    async def n_calls(self, rollout: Rollout) -> float:
        return 0.0


def test_components_stand_in_the_order_of_declaration() -> None:
    assert Graded.components() == (
        ComponentSpec("correct", "reward", 2.0, 5.0),
        ComponentSpec("rank", "group_reward", 0.2, REWARD_TIMEOUT_S),
        ComponentSpec("n_calls", "metric", 0.0, METRIC_TIMEOUT_S),
    )


def test_declarations_without_numbers_need_no_brackets() -> None:
    class Bare(Environment):
        @reward
        async def correct(self, rollout: Rollout) -> Value:
            return 1.0

        @group_reward
        async def rank(self, rollouts: Sequence[Rollout]) -> Sequence[Value]:
            return []

        @metric()
        async def n(self, rollout: Rollout) -> float:
            return 0.0

    assert [(one.name, one.kind, one.weight) for one in Bare.components()] == [
        ("correct", "reward", 1.0),
        ("rank", "group_reward", 1.0),
        ("n", "metric", 0.0),
    ]


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_weight_must_be_finite(weight: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        reward(weight=weight)


@pytest.mark.parametrize("timeout_s", [0, -1, 1e9, float("nan")])
def test_a_timeout_must_be_bearable(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        reward(timeout_s=timeout_s)
