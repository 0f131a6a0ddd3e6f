"""Small plans and pools with defaults; a test names only what it is about."""

from dataclasses import replace
from typing import Any

from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.plan import AfterTries, JobPlan, OnNoSignal, Order, Pool

POOL = Pool(engines=2, trainers=1, sandboxes=64, grading_reserve=1)


def plan(name: str = "a", **changes: Any) -> JobPlan:
    """A small asynchronous job."""
    base = JobPlan(
        job_id=JobId(f"job_{name}"),
        attempt_id=AttemptId(f"att_{name}"),
        organization_id=OrganizationId("org_1"),
        project_id=ProjectId("prj_1"),
        group_size=2,
        groups_per_batch=2,
        max_staleness=1,
        async_ratio=2.0,
        order=Order.OLDEST,
        max_steps=4,
        tries=3,
        after_tries=AfterTries.SHRINK,
        min_group_size=1,
        pause_if_failed_share=1.0,
        on_no_signal=OnNoSignal.SKIP,
        checkpoint_every=2,
        evaluation=None,
        engines_min=1,
        engines_max=2,
        expected_turns=2,
        drain_s=2.0,
        retry_backoff_s=0.5,
        watchdog_s=60.0,
    )
    return replace(base, **changes)


def pool(**changes: Any) -> Pool:
    """The usual pool with changes."""
    return replace(POOL, **changes)
