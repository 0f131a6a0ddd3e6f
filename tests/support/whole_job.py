"""One call that looks at everything of an ended job in a running stack."""

import asyncio
from typing import Final

from domain.ids import RolloutId
from domain.trajectory import Trajectory
from infra.codec import from_msgpack
from stores.blobs import Blobs
from stores.unit_of_work import Database
from tests.support import processes
from tests.support.job_checks import check_rows, check_trajectories
from tests.support.job_rows import JobRows, read_job
from tests.support.replay import replayed
from tests.support.stack import Stack
from tests.support.waiting import wait_until

RELEASED_WITHIN_S: Final = 30.0
"""Hosts end at their keeper's next renewal; what a dead node agent held ends with it."""


def assert_whole(stack: Stack, job_id: str, last_step: int | None = None) -> JobRows:
    """Fail with every finding on the job's rows, trajectories and weights; the rows otherwise."""
    rows, findings = asyncio.run(_findings(stack, job_id, last_step))
    assert not findings, "\n".join([f"job {job_id}:", *findings])
    return rows


def assert_released(stack: Stack) -> None:
    """No host of a job, no sandbox, no environment process, no lease is left within a bound."""
    try:
        wait_until(lambda: not held(stack), RELEASED_WITHIN_S)
    except AssertionError:
        raise AssertionError(f"still held: {held(stack)}") from None


def held(stack: Stack) -> list[str]:
    """What jobs hold at this moment: leases, host processes, sandboxes, environments."""
    leases = stack.query(
        "select id, owner, desired from host_lease where attempt_id is not null"
        " and (owner is not null or desired = 'up')"
    )
    found = stack.processes()
    of_jobs = [
        *processes.hosts(found, "engine"),
        *processes.hosts(found, "trainer"),
        *processes.bubblewraps(found),
        *processes.zygote_members(found),
        *processes.runners(found),
    ]
    return [*(str(row) for row in leases), *(f"{one.pid} {one.command[:80]}" for one in of_jobs)]


async def _findings(stack: Stack, job_id: str, last_step: int | None) -> tuple[JobRows, list[str]]:
    database, blobs = Database(stack.database_url), Blobs(stack.object_store_url)
    try:
        rows = await read_job(database, job_id)
        trajectories = await read_trajectories(blobs, rows)
        findings = [
            *check_rows(rows, last_step),
            *check_trajectories(rows, trajectories),
            *await replayed(database, blobs, rows),
        ]
    finally:
        await database.close()
    return rows, findings


async def read_trajectories(blobs: Blobs, rows: JobRows) -> dict[RolloutId, Trajectory]:
    """Trajectories of all rollouts that have one."""
    return {
        rollout["id"]: from_msgpack(
            await blobs.read(rollout["trajectory_uri"], rollout["trajectory_sha"]), Trajectory
        )
        for rollout in rows.rollouts
        if rollout["trajectory_uri"] is not None
    }
