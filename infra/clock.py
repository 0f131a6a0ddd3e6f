"""Time as an argument: the one place where server code reads a clock.

`SystemClock` is what processes run on; `ManualClock` is what tests hold in their hand. Leases in
the database use database time instead; only a holder's own deadline uses `monotonic`.
"""

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

MANUAL_CLOCK_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Where a `ManualClock` starts unless told otherwise: a fixed day, so that recorded ids repeat."""


class Clock(Protocol):
    """Wall time, monotonic time and waiting, as one injectable thing."""

    def now(self) -> datetime:
        """Wall time, aware, in UTC. May jump; never compute a deadline from it."""
        ...

    def monotonic(self) -> float:
        """Seconds that only rise; the only base for deadlines and durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until `monotonic` has risen by `seconds`."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Wall time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that only rise."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time."""
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when a test calls `advance`; sleepers wake in order of deadline."""

    def __init__(self, start: datetime = MANUAL_CLOCK_START) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """The start plus everything advanced so far."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has passed the deadline."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), future))
        await future

    def advance(self, seconds: float) -> None:
        """Move time forward and release every sleeper whose deadline is reached."""
        assert seconds >= 0, "time does not run backwards"
        self._elapsed_s += seconds
        while self._sleepers and self._sleepers[0][0] <= self._elapsed_s:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
