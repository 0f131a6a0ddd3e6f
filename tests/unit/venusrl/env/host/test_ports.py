"""Full marks of an environment: what its declared weights say that a rollout must reach to pass."""

import math

import pytest

from venusrl.env.host.ports import EnvironmentInfo
from venusrl.env.rewards import ComponentKind, ComponentSpec


def info(*declared: tuple[ComponentKind, float]) -> EnvironmentInfo:
    """An environment with these kinds and weights."""
    parts = [ComponentSpec(f"c{n}", kind, weight, 1.0) for n, (kind, weight) in enumerate(declared)]
    return EnvironmentInfo(components=tuple(parts))


@pytest.mark.parametrize(
    ("declared", "full_marks"),
    [
        ([("reward", 1.0)], 1.0),
        ([("reward", 1.0), ("reward", 1.0), ("group_reward", 2.0)], 4.0),
        ([("reward", 0.5), ("metric", 0.0)], 0.5),
        ([("reward", 1.0), ("reward", -3.0), ("reward", 0.0)], 1.0),
        ([("reward", -1.0)], 0.0),
        ([], 0.0),
    ],
)
def test_full_marks_are_the_positive_weights_of_rewards(
    declared: list[tuple[ComponentKind, float]], full_marks: float
) -> None:
    assert info(*declared).full_marks == full_marks


def test_full_marks_beyond_all_numbers_stay_a_number() -> None:
    assert math.isfinite(info(("reward", 1e308), ("reward", 1e308)).full_marks)
