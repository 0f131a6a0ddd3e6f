"""A job of a running platform, asked what it would have been under other settings."""

import pytest

from tests.support import requires
from tests.support.specs import small_job
from tests.support.stack import Stack

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]

ENDS_WITHIN_S = 200.0


def test_a_finished_job_is_a_what_if_s_ground(stack: Stack) -> None:
    client = stack.client
    job = client.jobs.create(small_job("calc", rollout={"group_size": 4, "groups_per_batch": 2}))
    client.jobs.wait(job.id, ENDS_WITHIN_S)
    points = client.jobs.metrics(job.id, names=["update_s", "sync_s", "trainer_busy_s"])
    seconds = {(point.name, point.step): point.value for point in points}
    for step in (1, 2, 3):
        assert 0.0 < seconds["update_s", step] <= seconds["trainer_busy_s", step]
    # The last weights may come when nobody samples any more.
    assert seconds["sync_s", 1] > 0.0

    larger = {"rollout": {"groups_per_batch": 4}}
    plan = client.plans.whatif(job.id, larger, pool={"engines": 1}, replicas=4)
    result = client.plans.wait(plan)

    assert result.recorded is not None
    assert result.unchanged is not None
    assert result.changed is not None
    assert (result.recorded.steps, result.recorded.engines) == (3, 2)
    assert result.recorded.figures["step_s"] > 0.0
    assert result.changed.engines == 1
    for one in (result.unchanged, result.changed):
        planned = one.figures["step_s"]
        assert 0.0 < planned.low <= planned.median <= planned.high
    # Twice the groups on half of the engines take longer than before.
    assert result.changed.figures["step_s"].median > result.bias * 0.9 * (
        result.unchanged.figures["step_s"].median
    )
