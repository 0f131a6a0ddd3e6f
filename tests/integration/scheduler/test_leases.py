"""Host leases: claim by compare-and-set, fencing by epoch, expiry by database time."""

import psycopg
import pytest
from sqlalchemy import text

from domain.errors import FencedOut, StoreUnavailable
from domain.ids import AttemptId, HostId, JobId
from domain.states import HostKind
from stores.system import leases
from stores.system.leadership import Leadership
from stores.unit_of_work import Database, HostFence, LeaderFence
from tests.support import eventually

HOST = HostId("host_x_trainer")
TTL_S = 30.0


async def declare(database: Database) -> None:
    async with database.begin() as connection:
        await leases.declare(connection, HOST, HostKind.TRAINER, AttemptId("att_x"), JobId("job_x"))


def claim(
    keeper: "psycopg.Connection[tuple[object, ...]]", owner: str = "me", ttl_s: float = TTL_S
) -> leases.Claim | None:
    return leases.claim(keeper, HOST, 1, owner=owner, key_sha=b"k", ttl_s=ttl_s)


async def test_only_one_keeper_claims_an_epoch(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    assert claim(keeper) == leases.Claim("trainer", AttemptId("att_x"), JobId("job_x"))
    assert claim(keeper, "another") is None


async def test_expired_lease_raises_the_epoch_and_fences_the_host_out(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    assert claim(keeper, ttl_s=0.2) is not None

    async def expire() -> list[tuple[HostId, int]]:
        async with database.begin() as connection:
            return await leases.expire(connection)

    assert await eventually(expire, 5.0) == [(HOST, 1)]
    assert leases.renew(keeper, HOST, 1, "me", TTL_S) is None
    with pytest.raises(FencedOut):
        async with database.begin(HostFence(HOST, 1)):
            pass


async def test_a_renewal_never_waits_for_the_transactions_of_its_host(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    """A busy host writes without a pause; a renewal behind that would come too late."""
    await declare(database)
    claim(keeper)
    keeper.execute("set statement_timeout = 2000")
    async with database.begin(HostFence(HOST, 1)):
        assert leases.renew(keeper, HOST, 1, "me", TTL_S) == "up"


async def test_who_raises_the_epoch_waits_for_the_transactions_of_the_host(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    claim(keeper)
    keeper.execute("set statement_timeout = 300")
    async with database.begin(HostFence(HOST, 1)):
        with pytest.raises(psycopg.errors.QueryCanceled):
            leases.give_up(keeper, HOST, 1, "me", "the host exited")
        with pytest.raises(StoreUnavailable):
            await _evict_soon(database)
    leases.give_up(keeper, HOST, 1, "me", "the host exited")
    with pytest.raises(FencedOut):
        async with database.begin(HostFence(HOST, 1)):
            pass


async def _evict_soon(database: Database) -> None:
    async with database.begin() as connection:
        await connection.execute(text("set local statement_timeout = 300"))
        await leases.evict(connection, HOST, 1, "poison")


async def test_a_heartbeat_never_waits_for_the_transactions_of_its_term(
    database: Database, database_url: str
) -> None:
    leader, next_one = Leadership(database_url, 0.2), Leadership(database_url, 0.2)
    term = await leader.try_acquire("here")
    assert term is not None
    async with database.begin(LeaderFence(term.number)):
        assert await leader.beat(term.number)
    await leader.resign(term.number)
    following = await next_one.try_acquire("there")
    assert following is not None
    with pytest.raises(FencedOut):
        async with database.begin(LeaderFence(term.number)):
            pass
    await next_one.close()


async def test_claim_of_an_old_epoch_is_refused_after_give_up(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    claim(keeper)
    leases.give_up(keeper, HOST, 1, "me", "the host exited")
    assert claim(keeper) is None
    async with database.begin() as connection:
        (row,) = await leases.live(connection, 5.0)
    assert (row.epoch, row.owner, row.last_cause) == (2, None, "the host exited")
    assert row.wants_dispatch


async def test_renewal_tells_the_keeper_what_is_desired(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    claim(keeper)
    assert leases.renew(keeper, HOST, 1, "me", TTL_S) == "up"
    async with database.begin() as connection:
        await leases.retire(connection, AttemptId("att_x"))
    assert leases.renew(keeper, HOST, 1, "me", TTL_S) == "down"


async def test_redispatch_keeps_the_epoch_while_unclaimed(database: Database) -> None:
    await declare(database)
    async with database.begin() as connection:
        await leases.mark_dispatched(connection, HOST, 1)
        (fresh,) = await leases.live(connection, 60.0)
        (overdue,) = await leases.live(connection, -1.0)
    assert (fresh.wants_dispatch, overdue.wants_dispatch) == (False, True)
    assert overdue.epoch == 1


async def test_retired_host_comes_back_at_a_higher_epoch(
    database: Database, keeper: "psycopg.Connection[tuple[object, ...]]"
) -> None:
    await declare(database)
    claim(keeper)
    async with database.begin() as connection:
        await leases.retire(connection, AttemptId("att_x"))
    await declare(database)
    async with database.begin() as connection:
        (row,) = await leases.live(connection, 5.0)
    assert (row.epoch, row.desired, row.starts, row.owner) == (2, "up", 0, None)
