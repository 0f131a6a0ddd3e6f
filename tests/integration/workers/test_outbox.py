"""Facts on their way to Postgres: kept while it is away, written once, void after the lease."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from sqlalchemy import insert

from domain.errors import StoreUnavailable
from domain.ids import HostId
from domain.states import HostKind
from infra.clock import SystemClock
from stores import tables as t
from stores.unit_of_work import AsyncConnection, Database, HostFence
from tests.support import eventually, requires
from workers import outbox as outbox_module
from workers.outbox import Outbox

pytestmark = requires("postgres")

HOST = HostId("host_node0")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url, 2)
    async with database.begin() as connection:
        lease = {"id": HOST, "kind": HostKind.NODE.value, "desired": "up", "owner": "k"}
        await connection.execute(insert(t.host_lease).values(**lease))
    yield database
    await database.close()


class Shelf:
    """Where facts are written; away for as many writes as told."""

    def __init__(self) -> None:
        """Empty."""
        self.written: list[int] = []
        self.away = 0

    async def write(self, connection: AsyncConnection, facts: Sequence[int]) -> None:
        """Keep them, or fail."""
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        self.written += facts


async def test_facts_wait_for_a_store_that_is_away_and_are_written_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "PAUSE_S", 0.01)
    monkeypatch.setattr(outbox_module, "BATCH_MAX", 2)
    shelf = Shelf()
    outbox = Outbox(database, HostFence(HOST, 1), SystemClock(), shelf.write)
    shelf.away = 2
    for number in range(5):
        outbox.put(number)
    running = asyncio.create_task(outbox.run())
    await eventually(lambda: len(shelf.written) == 5)
    outbox.put(5)
    await eventually(lambda: len(shelf.written) == 6)
    running.cancel()
    assert shelf.written == [0, 1, 2, 3, 4, 5]


async def test_what_is_left_at_the_end_is_written(database: Database) -> None:
    shelf = Shelf()
    outbox = Outbox(database, HostFence(HOST, 1), SystemClock(), shelf.write)
    outbox.put(1)
    await outbox.flush()
    assert shelf.written == [1]


async def test_nothing_is_written_under_another_epoch(database: Database) -> None:
    shelf = Shelf()
    outbox = Outbox(database, HostFence(HOST, 2), SystemClock(), shelf.write)
    outbox.put(1)
    await outbox.flush()
    assert shelf.written == []


async def test_more_than_the_room_loses_the_oldest_and_counts_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "WAITING_MAX", 2)
    shelf = Shelf()
    outbox = Outbox(database, HostFence(HOST, 1), SystemClock(), shelf.write)
    for number in range(3):
        outbox.put(number)
    await outbox.flush()
    assert (shelf.written, outbox.lost) == ([1, 2], 1)
