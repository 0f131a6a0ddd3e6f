"""Facts that a host has measured, on their way to Postgres: written in batches, under its fence.

A fact waits while Postgres is away and is written once it is back. What the process had not written
when it died is lost with it; the interval of its lease says for how long it lived all the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar

from domain.errors import FencedOut, StoreUnavailable
from infra.clock import Clock
from infra.logging import get_logger
from stores.unit_of_work import AsyncConnection, Database, HostFence

BATCH_MAX: Final = 100
"""Facts of one transaction: it holds the host's fence, which a renewal of the lease waits for."""

WAITING_MAX: Final = 100_000
"""Facts kept while Postgres is away; hours of them. Beyond it the oldest are lost, and counted."""

PAUSE_S: Final = 1.0
"""Before Postgres is asked again."""

FLUSH_S: Final = 2.0
"""What a host that ends may spend on its last facts, well within its keeper's grace."""

F = TypeVar("F")


class Outbox(Generic[F]):
    """`put` never waits; `run` writes until it is cancelled; `flush` at the end."""

    def __init__(
        self,
        database: Database,
        fence: HostFence,
        clock: Clock,
        write: Callable[[AsyncConnection, Sequence[F]], Awaitable[None]],
    ) -> None:
        self._database = database
        self._fence = fence
        self._clock = clock
        self._write = write
        self._waiting: list[F] = []
        self._filled = asyncio.Event()
        self.lost = 0
        """Facts that found no room."""

    def put(self, fact: F) -> None:
        """Hand a fact over."""
        self._waiting.append(fact)
        if len(self._waiting) > WAITING_MAX:
            del self._waiting[0]
            self.lost += 1
        self._filled.set()

    async def run(self) -> None:
        """Write for ever; ends when the fence no longer holds."""
        while True:
            await self._filled.wait()
            try:
                await self._write_all()
            except StoreUnavailable as error:
                get_logger().warning("outbox.store_away", cause=str(error))
                await self._clock.sleep(PAUSE_S)
            except FencedOut:
                # Who ends the process is another's decision; nothing of this epoch counts any more.
                self._waiting.clear()
                self._filled.clear()

    async def flush(self) -> None:
        """Write what is left, if that is quick."""
        with suppress(StoreUnavailable, FencedOut, TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._write_all()

    async def _write_all(self) -> None:
        while self._waiting:
            batch = self._waiting[:BATCH_MAX]
            async with self._database.begin(self._fence) as connection:
                await self._write(connection, batch)
            del self._waiting[: len(batch)]
        self._filled.clear()
