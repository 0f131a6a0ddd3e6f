"""Specs by chance: what validates runs on a real platform, to its end or to a named lack of signal.

Sizes are cut so that a job takes seconds; everything else stays as drawn.
"""

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.property.test_job_specs import AROUND
from tests.support import requires
from tests.support.spec_strategies import SPECS, mended
from tests.support.stack import Stack
from tests.support.whole_job import assert_whole

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    requires("postgres", "valkey", "bwrap"),
]

JOBS: Final = 8
ENDS_WITHIN_S: Final = 1000.0
"""All of them: drawn priorities decide their order."""

LARGEST: Final = {
    ("rollout", "group_size"): 4,
    ("rollout", "groups_per_batch"): 2,
    ("evaluation", "tasks"): 3,
    ("evaluation", "rollouts_per_task"): 2,
    ("stop", "max_steps"): 2,
}


def small(drawn: dict[str, Any]) -> dict[str, Any]:
    """A valid spec of a job that takes seconds and that stops where it cannot learn."""
    body = {**drawn, "environments": [{**drawn["environments"][0], "config": {}}]}
    for (part, name), largest in LARGEST.items():
        if isinstance(body.get(part, {}), dict):
            given = body.get(part, {})
            body[part] = {**given, name: min(given.get(name, largest), largest)}
    body["algorithm"] = {**body.get("algorithm", {}), "on_no_signal": "pause"}
    body["budget"] = {}
    return mended(body, AROUND)


def drawn_bodies() -> list[dict[str, Any]]:
    """The same specs in every run."""
    bodies: list[dict[str, Any]] = []

    @settings(
        max_examples=JOBS,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SPECS)
    def draw(drawn: dict[str, Any]) -> None:
        bodies.append(small(mended(drawn, AROUND)))

    draw()
    return bodies


def test_a_valid_spec_runs(stack: Stack) -> None:
    bodies = drawn_bodies()
    assert len(bodies) == JOBS
    # All at once: while one runs the next is prepared.
    jobs = [stack.client.jobs.create(body) for body in bodies]
    for body, job in zip(bodies, jobs, strict=True):
        found = stack.client.jobs.wait_for(job.id, ["succeeded", "paused"], ENDS_WITHIN_S)
        if found.state == "succeeded":
            assert_whole(stack, job.id)
            continue
        assert found.state == "paused", (body, found.failure)
        assert (found.queue_reason or "").startswith("no_signal"), (body, found.queue_reason)
        stack.client.jobs.cancel(job.id)
        stack.client.jobs.wait_for(job.id, ["cancelled"], ENDS_WITHIN_S)
