"""Time that a job used, read from its events; who keeps a checkpoint."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from domain.events import BudgetSpent, Event
from domain.ids import AttemptId, JobId
from scheduler.budget import WARNING, BudgetWatch
from scheduler.spec import BudgetUse, read_spec
from stores import tables as t
from stores.system import budgets, checkpoints
from stores.unit_of_work import Database
from tests.integration.api.world import Tenant, World, installation
from tests.support.requirements import requires

pytestmark = [pytest.mark.integration, requires("postgres")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def tenant(database_url: str, tmp_path: Path) -> Iterator[Tenant]:
    """A project on a fresh database."""
    with installation(database_url, tmp_path / "home") as world:
        yield world.tenant()


def say(world: World, job_id: str, *states: tuple[float, str]) -> None:
    """State events of a job at these minutes."""
    for number, (minute, state) in enumerate(states):
        at = BEGIN + timedelta(minutes=minute)
        values = {"job_id": job_id, "seq": 100 + number, "type": "job.state", "created_at": at}
        world.add(t.job_event, **values, body={"state": state})


def test_only_time_with_hosts_counts_over_all_attempts(tenant: Tenant) -> None:
    job = tenant.job()["id"]
    say(
        tenant.world, job,
        (0, "queued"), (10, "provisioning"), (12, "running"), (20, "pausing"), (21, "paused"),
        (60, "resuming"), (90, "running"), (95, "cancelling"), (96, "cancelled"),
        (100, "queued"), (110, "provisioning"), (111, "running"), (113, "succeeded"),
    )  # fmt: skip
    other = tenant.job()["id"]
    ids = [JobId(job), JobId(other)]
    used = tenant.world.run(lambda connection: budgets.held_seconds(connection, ids))
    assert used == {job: 60.0 * (11 + 6 + 3)}


def test_what_a_job_uses_now_counts_up_to_now(tenant: Tenant) -> None:
    job = tenant.job()["id"]
    minutes = (datetime.now(UTC) - BEGIN) / timedelta(minutes=1)
    say(tenant.world, job, (minutes - 5, "running"))
    used = tenant.world.run(lambda connection: budgets.held_seconds(connection, [JobId(job)]))
    assert 299 < used[JobId(job)] < 400


@dataclass(frozen=True)
class Context:
    """What the watch reads of a job's context."""

    spec: Any


def test_a_warning_is_said_once_and_the_limit_is_told_again(tenant: Tenant) -> None:
    job = JobId(tenant.job()["id"])
    world, facts = tenant.world, list[Event]()
    minutes = (datetime.now(UTC) - BEGIN) / timedelta(minutes=1)
    say(world, job, (minutes - 90, "running"))
    lead(world)
    stored = next(row.spec for row in world.rows(t.job))
    read = read_spec(stored)

    async def look(hours: float | None, times: int) -> None:
        database = Database(world.settings.database_url, 1)
        contexts: Any = {job: Context(replace(read, budget=BudgetUse(hours)))}
        watch = BudgetWatch(database, 1, contexts, facts.append)
        for _ in range(times):
            await watch.look()
        await database.close()

    asyncio.run(look(None, 1))
    asyncio.run(look(4.0, 1))
    assert facts == []
    asyncio.run(look(1.8, 2))
    asyncio.run(look(1.8, 1))
    assert facts == []
    asyncio.run(look(1.0, 2))
    assert [type(fact) for fact in facts] == [BudgetSpent, BudgetSpent]
    warned = [row.body["max_wall_hours"] for row in world.rows(t.job_event) if row.type == WARNING]
    assert warned == [1.8, 1.0]


def lead(world: World) -> None:
    """Term 1 leads."""
    values = {"id": 1, "term": 1, "address": "", "key": b"", "backend_pid": 0}
    world.add(t.leadership, **values, heartbeat_at=datetime.now(UTC))


def test_a_checkpoint_is_kept_for_as_long_as_a_branch_may_start_from_it(tenant: Tenant) -> None:
    source = tenant.job()
    first, second = tenant.checkpoint(source, step=2), tenant.checkpoint(source, step=4)

    def kept() -> set[str]:
        job = JobId(source["id"])
        return {*tenant.world.run(lambda c: checkpoints.starting_points(c, job))}

    assert kept() == set()
    with tenant.sdk() as client:
        branch = client.jobs.branch(source["id"], first)
        client.jobs.branch(source["id"], second)
        assert kept() == {first, second}
        client.jobs.cancel(branch.id)
    assert kept() == {second}


def test_scores_are_by_step_and_open_while_an_evaluation_runs(tenant: Tenant) -> None:
    job = tenant.job()
    attempt = AttemptId(job["attempt_id"])
    for step in (0, 5, 10):
        tenant.world.add(
            t.rollout_group, id=f"grp_{step}", job_id=job["id"], attempt_id=attempt,
            organization_id=tenant.organization_id, ordinal=step, purpose="evaluation",
            task_id="t", environment_version_id="ev", policy_version=step, size=1, open=0,
        )  # fmt: skip
    for step, score in ((0, 0.25), (5, None)):
        values = {"tasks": 1, "scored": 1, "unscorable": 0, "seconds": 1.0}
        tenant.world.add(
            t.evaluation, attempt_id=attempt, step=step, score=1.0, selected=score, **values
        )
    scores = tenant.world.run(lambda c: checkpoints.evaluation_scores(c, attempt))
    assert scores == {0: 0.25, 10: None}
