"""Sessions with the database: a process that stands still in mid transaction holds up nobody."""

import psycopg
import pytest
from sqlalchemy import bindparam, insert, select, text, update

from domain.errors import StoreUnavailable
from domain.ids import AttemptId, HostId, JobId
from domain.states import HostKind
from infra.settings import Settings
from stores import sessions
from stores import tables as t
from stores.system import leases
from stores.unit_of_work import Database
from tests.support import eventually
from workers.keeper import Keeper

HOST, OTHER = HostId("host_x_trainer"), HostId("host_x_engine0")
TTL_S = 30.0

Session = psycopg.Connection[tuple[object, ...]]


async def declare(database: Database, host: HostId = HOST) -> None:
    async with database.begin() as connection:
        await leases.declare(connection, host, HostKind.TRAINER, AttemptId("att_x"), JobId("job_x"))


async def test_a_keeper_that_is_stopped_in_mid_transaction_holds_up_no_other_lease(
    database: Database, keeper: Session, database_url: str
) -> None:
    """It would keep its row lock until its session ends: that is soon, and others do not wait."""
    await declare(database)
    await declare(database, OTHER)
    for host in (HOST, OTHER):
        leases.claim(keeper, host, 1, owner="me", key_sha=b"k", ttl_s=TTL_S)
    keeper.execute("update host_lease set lease_until = now() - interval '1 ms'")

    async def expire() -> list[tuple[HostId, int]]:
        async with database.begin() as connection:
            return await leases.expire(connection)

    soon = sessions.options(500)
    with psycopg.connect(database_url, autocommit=True, options=soon) as stopped:
        stopped.execute("begin")
        stopped.execute("select 1 from host_lease where id = %s for update", (HOST,))
        assert await expire() == [(OTHER, 1)]
        assert await eventually(expire, 5.0) == [(HOST, 1)]
        with pytest.raises(psycopg.Error):
            stopped.execute("select 1")


async def test_every_session_ends_a_transaction_that_its_process_left_open(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keepers' and the leader's own sessions too, whatever the server's setting is."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    opened = Keeper(Settings.from_env(), HOST, 1)._database()
    row = opened.execute("show idle_in_transaction_session_timeout").fetchone()
    opened.close()
    assert row == ("3s",)


async def test_a_process_that_stood_still_in_mid_transaction_hears_that_the_store_is_away(
    database: Database, keeper: Session
) -> None:
    """It wakes up to an ended session; that is tried again like any other loss of the database."""
    await declare(database)

    with pytest.raises(StoreUnavailable, match="stood still"):
        await _stand_still(database, keeper)
    async with database.begin() as connection:
        assert len(await leases.live(connection, 5.0)) == 1


async def _stand_still(database: Database, observer: Session) -> None:
    """Open a transaction, wait until its session has been ended, go on in it."""

    async def is_ended() -> bool:
        found = observer.execute("select 1 from pg_stat_activity where pid = %s", (pid,))
        return found.fetchone() is None

    async with database.begin() as connection:
        await connection.execute(text("set idle_in_transaction_session_timeout = 200"))
        pid = (await connection.execute(text("select pg_backend_pid()"))).scalar_one()
        assert await eventually(is_ended, 5.0)
        await leases.expire(connection)


async def test_many_parameter_sets_never_travel_as_a_pipeline(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no bound on how long it waits for the rest of one, its locks held."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("psycopg sends these as a pipeline")

    monkeypatch.setattr(psycopg.AsyncCursor, "executemany", refuse)
    rows = [{"id": host, "kind": "engine", "desired": "up"} for host in (HOST, OTHER)]
    changed = update(t.host_lease).where(t.host_lease.c.id == bindparam("of"))
    async with database.begin() as connection:
        await connection.execute(insert(t.host_lease), rows)
        await connection.execute(
            changed.values(desired=bindparam("to")),
            [{"of": HOST, "to": "down"}, {"of": OTHER, "to": "up"}],
        )
    query = select(t.host_lease.c.desired).order_by(t.host_lease.c.id)
    async with database.begin() as connection:
        assert (await connection.execute(query)).scalars().all() == ["up", "down"]
