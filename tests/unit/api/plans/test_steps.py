"""Steps of a plan: the unchanged run is as long as the record, whatever is asked of the changed one."""

from typing import Any

import pytest

from api.plans.steps import recorded_steps, steps_of
from api.problems import Problem
from venusrl.models.plans import PlanCreate


def spec(size: int = 2, groups: int = 2, last: int | None = 100) -> dict[str, Any]:
    """A normalised spec's sizes."""
    return {
        "rollout": {"group_size": size, "groups_per_batch": groups},
        "stop": {"max_steps": last},
    }


def body(steps: int | None = None, replicas: int = 20) -> PlanCreate:
    """A what-if."""
    return PlanCreate(job="job_1", steps=steps, replicas=replicas)


@pytest.mark.parametrize(
    ("asked", "made", "simulated"),
    [(1, 3, 3), (None, 3, 3), (1, 40, 12), (None, 40, 12), (30, 40, 30), (50, 40, 40)],
)
def test_the_unchanged_run_is_over_the_recorded_steps(
    asked: int | None, made: int, simulated: int
) -> None:
    assert recorded_steps(spec(last=1), made, body(asked)) == simulated


def test_a_large_job_is_compared_over_what_a_plan_may_cost() -> None:
    # 400 rollouts a step and 20 runs: 6 steps of 50,000 rollouts, one of them spent.
    assert recorded_steps(spec(20, 20), 40, body(), spent=8_000) == 5
    with pytest.raises(Problem, match="too large"):
        recorded_steps(spec(20, 20), 40, body(), spent=45_000)


@pytest.mark.parametrize(
    ("asked", "last", "simulated"), [(None, 100, 12), (None, 1, 1), (30, 100, 30), (30, None, 30)]
)
def test_the_changed_run_ends_with_the_job(
    asked: int | None, last: int | None, simulated: int
) -> None:
    assert steps_of(spec(last=last), body(asked)) == simulated
