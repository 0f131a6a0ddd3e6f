"""Time that a job used, read from its events; who keeps a checkpoint."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from domain.ids import JobId
from stores import tables as t
from stores.system import budgets
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
