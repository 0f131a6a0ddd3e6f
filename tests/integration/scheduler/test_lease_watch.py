"""Which hosts the leader wakes keepers for: a bound for a job's hosts, none for node agents."""

from typing import Any, cast

import pytest
from celery import Celery
from sqlalchemy import func, insert, update

from domain.events import Event, TrainerFailed
from domain.ids import AttemptId, HostId, JobId, node_host_id
from domain.states import HostKind
from scheduler import watch
from scheduler.hosts import Hosts
from scheduler.watch import STARTS_MAX, LeaseWatch
from stores import tables as t
from stores.system import leases
from stores.unit_of_work import Database

ENGINE = HostId("host_x_engine0")
ATTEMPT = AttemptId("att_x")


class Wakes:
    """The broker's side: whom it was asked to wake."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send_task(self, name: str, args: list[Any], **options: Any) -> None:
        """Keep the host's id."""
        self.sent.append(args[0])


@pytest.fixture
async def database(database: Database) -> Database:
    """With a leader of term 1."""
    async with database.begin() as connection:
        row = {"id": 1, "term": 1, "address": "here", "key": b"k", "backend_pid": 1}
        await connection.execute(insert(t.leadership).values(**row, heartbeat_at=func.now()))
    return database


async def ended_often(database: Database, host: HostId, attempt: AttemptId | None) -> None:
    """A wanted, unclaimed host that was started as often as a job's host may be."""
    kind = HostKind.NODE if attempt is None else HostKind.ENGINE
    job = None if attempt is None else JobId("job_x")
    async with database.begin() as connection:
        await leases.declare(connection, host, kind, attempt, job)
        await connection.execute(update(t.host_lease).values(starts=STARTS_MAX))


async def looked(database: Database, times: int = 1) -> tuple[list[str], list[Event]]:
    """Wakes and facts of so many looks, each of which finds the host freed again."""
    wakes, facts = Wakes(), list[Event]()
    looking = LeaseWatch(database, cast("Hosts", None), cast("Celery", wakes), 1, facts.append)
    for _ in range(times):
        async with database.begin() as connection:
            await connection.execute(update(t.host_lease).values(dispatched_at=None))
        await looking.look()
    return wakes.sent, facts


async def test_a_node_agent_comes_back_however_often_it_ended(database: Database) -> None:
    await ended_often(database, node_host_id(0), None)
    sent, facts = await looked(database)
    assert (sent, facts) == ([node_host_id(0)], [])


async def test_a_node_agent_that_cannot_live_is_woken_slowly(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended_often(database, node_host_id(0), None)
    assert len((await looked(database, times=3))[0]) == 1
    monkeypatch.setattr(watch, "NODE_AGAIN_S", 0.0)
    assert len((await looked(database, times=3))[0]) == 3


async def test_a_host_of_a_job_that_ended_too_often_fails_its_attempt(database: Database) -> None:
    await ended_often(database, ENGINE, ATTEMPT)
    sent, facts = await looked(database)
    assert sent == []
    assert [(type(fact), fact.code) for fact in facts if isinstance(fact, TrainerFailed)] == [
        (TrainerFailed, "host_poison")
    ]
