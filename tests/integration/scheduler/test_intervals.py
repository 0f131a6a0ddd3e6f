"""Intervals of leases: they tile the time for which a host was wanted, whatever happens to it."""

import random
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from domain.ids import AttemptId, HostId, JobId, host_id
from domain.states import HostKind
from stores.system import intervals, leases
from stores.unit_of_work import Database
from tests.support import requires

pytestmark = requires("postgres")

ATTEMPT, JOB = AttemptId("att_x"), JobId("job_x")
HOST = host_id(ATTEMPT, "engine0")
TTL_S = 30.0

Keeper = psycopg.Connection[tuple[object, ...]]


async def declare(database: Database, host: HostId = HOST) -> None:
    async with database.begin() as connection:
        await leases.declare(connection, host, HostKind.ENGINE, ATTEMPT, JOB)


async def retire(database: Database) -> None:
    async with database.begin() as connection:
        await leases.retire(connection, ATTEMPT)


def claim(keeper: Keeper, epoch: int, host: HostId = HOST) -> None:
    assert leases.claim(keeper, host, epoch, owner="me", key_sha=b"k", ttl_s=TTL_S) is not None


async def expire(database: Database, keeper: Keeper, host: HostId = HOST) -> None:
    """Let the lease's end lie in the past, as if its keeper had died a while ago."""
    keeper.execute(
        "update host_lease set lease_until = now() - interval '1 ms' where id = %s", (host,)
    )
    async with database.begin() as connection:
        await leases.expire(connection)


def rows(keeper: Keeper, host: HostId = HOST) -> list[Any]:
    query = (
        "select epoch, owner, opened, cause, started_at, ended_at, ready_at from host_interval"
        " where host_id = %s order by number"
    )
    return list(keeper.execute(query, (host,)))


def shape(keeper: Keeper) -> list[tuple[Any, ...]]:
    return [
        (epoch, owner, opened, cause, ended is None)
        for epoch, owner, opened, cause, _, ended, _ in rows(keeper)
    ]


async def test_a_host_waits_is_held_is_lost_and_waits_again(
    database: Database, keeper: Keeper
) -> None:
    await declare(database)
    claim(keeper, 1)
    leases.give_up(keeper, HOST, 1, "me", "the host exited with status -9")
    claim(keeper, 2)
    await retire(database)
    leases.give_up(keeper, HOST, 2, "me", leases.DOWN)
    assert shape(keeper) == [
        (1, None, "declared", None, False),
        (1, "me", "declared", "the host exited with status -9", False),
        (2, None, "lost", None, False),
        (2, "me", "lost", None, False),
    ]


async def test_a_lease_that_expired_proves_its_holder_until_its_last_renewal(
    database: Database, keeper: Keeper
) -> None:
    await declare(database)
    claim(keeper, 1)
    keeper.execute(
        "update host_interval set started_at = started_at - interval '50 s',"
        " ended_at = ended_at - interval '50 s'"
    )
    await expire(database, keeper)
    held, waiting = rows(keeper)[1:]
    assert held[5] == waiting[4]
    seconds = (held[5] - held[4]).total_seconds()
    assert 50.0 - TTL_S - 1.0 < seconds < 50.0 - TTL_S + 10.0
    assert held[3] == leases.EXPIRED


async def test_a_host_that_nobody_claimed_ends_with_its_attempt(
    database: Database, keeper: Keeper
) -> None:
    await declare(database)
    await retire(database)
    await declare(database)
    assert shape(keeper) == [
        (1, None, "declared", None, False),
        (2, None, "declared", None, True),
    ]


async def test_the_first_word_of_a_ready_host_counts(database: Database, keeper: Keeper) -> None:
    await declare(database)
    claim(keeper, 1)
    for epoch in (1, 1, 2):
        async with database.begin() as connection:
            await intervals.mark_ready(connection, HOST, epoch)
    waiting, held = rows(keeper)
    assert waiting[6] is None
    assert held[4] <= held[6]


@pytest.mark.parametrize("seed", range(8))
async def test_intervals_of_random_histories_neither_gap_nor_overlap(
    database: Database, keeper: Keeper, seed: int
) -> None:
    """Every history ends in one row of intervals, each beginning where the one before it ended."""
    chance = random.Random(seed)
    await declare(database)
    for _ in range(25):
        found = keeper.execute("select epoch, owner, desired from host_lease").fetchone()
        assert found is not None
        epoch = int(str(found[0]))
        match chance.choice(("claim", "give_up", "expire", "evict", "retire", "declare")):
            case "claim":
                leases.claim(keeper, HOST, epoch, owner="me", key_sha=b"k", ttl_s=TTL_S)
            case "give_up":
                cause = chance.choice((leases.DOWN, "killed"))
                leases.give_up(keeper, HOST, epoch, "me", cause)
            case "expire":
                await expire(database, keeper)
            case "evict":
                async with database.begin() as connection:
                    await leases.evict(connection, HOST, epoch, "stuck")
            case "retire":
                await retire(database)
            case "declare":
                await declare(database)
        _assert_tiled(keeper)


def _assert_tiled(keeper: Keeper) -> None:
    found = rows(keeper)
    for before, after in pairwise(found):
        assert before[5] is not None
        assert before[4] <= before[5] <= after[4]
        is_new_life = after[2] == "declared" and after[1] is None
        assert is_new_life or before[5] == after[4], (before, after)
    lease = keeper.execute("select epoch, owner, desired from host_lease").fetchone()
    assert lease is not None
    epoch, owner, desired = lease
    is_open = found[-1][5] is None
    assert is_open == (desired == "up" or owner is not None)
    if is_open:
        assert found[-1][:2] == (epoch, owner)
