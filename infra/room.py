"""A bounded number of places, handed out by priority.

`asyncio.Semaphore` serves whoever came first; where a batch waits behind work that nobody waits for,
that is the wrong order.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """`size` places; of those who wait the lowest priority value goes first, then who came first."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._arrivals = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, priority: int) -> AsyncIterator[None]:
        """Hold one place; waits for it."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, priority: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the place to the first who still waits."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
