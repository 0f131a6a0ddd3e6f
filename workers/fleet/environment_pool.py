"""Environment processes of this node: one per (attempt, environment version), started on demand.

A process that died is started again for the next try, after a pause that doubles with every death
that follows no successful call; past a bound it is poison and every further request is refused at
once. Attempts never share a process, so one that keeps dying harms nobody else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from domain.ids import AttemptId
from infra.clock import Clock
from infra.logging import get_logger
from infra.sharing import WorkCancelled, shared
from venusrl.env.host.ports import EnvironmentCrashed, EnvironmentProcess
from venusrl.env.messages import Json
from workers.fleet.packages import Package

PROCESSES_MAX: Final = 64
"""Environment processes of one node; each holds tens of megabytes even when idle."""

RESPAWN_PAUSE_S: Final = 0.25
"""Pause after the first death; doubled with each further one."""

RESPAWN_PAUSE_MAX_S: Final = 10.0
"""Longest pause: tries that wait for it stay well below their own limits."""

DEATHS_MAX: Final = 20
"""Deaths in a row without one successful call: more starts would only burn the node's processors."""


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """What one process serves. Another configuration is another process."""

    attempt_id: AttemptId
    version_id: str
    config_json: str


Start = Callable[[EnvironmentKey, Package, Mapping[str, Json]], Awaitable[EnvironmentProcess]]
"""Starts one process; raises EnvironmentFault."""


@dataclass(slots=True)
class _Entry:
    start: "asyncio.Task[EnvironmentProcess] | None" = None
    deaths: int = 0
    """In a row, since the last successful call."""


class EnvironmentPool:
    """Starts, hands out, restarts and stops environment processes."""

    def __init__(self, start: Start, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._entries: dict[EnvironmentKey, _Entry] = {}
        self.restarts = 0

    async def get(
        self, key: EnvironmentKey, package: Package, config: Mapping[str, Json]
    ) -> EnvironmentProcess:
        """The live process of a key, started if there is none. Raises EnvironmentFault."""
        entry = self._entries.get(key)
        if entry is None:
            if len(self._entries) >= PROCESSES_MAX:
                raise EnvironmentCrashed("stopped", f"{PROCESSES_MAX} environments run already")
            entry = self._entries[key] = _Entry()
        if entry.start is None or _has_ended(entry.start):
            if entry.start is not None:
                self._count_death(key, entry)
            entry.start = asyncio.create_task(self._started(key, package, config))
        try:
            return await shared(entry.start)
        except WorkCancelled:
            raise EnvironmentCrashed("stopped", "its attempt was released") from None

    def succeeded(self, key: EnvironmentKey) -> None:
        """A call of user code came back: the process is no poison."""
        if (entry := self._entries.get(key)) is not None:
            entry.deaths = 0

    def attempts(self) -> tuple[AttemptId, ...]:
        """Attempts that have a process."""
        return tuple(dict.fromkeys(key.attempt_id for key in self._entries))

    @property
    def lag_s(self) -> float:
        """Largest newest loop lag of all live processes."""
        alive = (entry.start for entry in self._entries.values() if entry.start is not None)
        return max((task.result().lag_s for task in alive if not _has_ended(task, True)), default=0)

    async def stop_attempt(self, attempt_id: AttemptId) -> None:
        """End the processes of an attempt and forget how often they died."""
        keys = [key for key in self._entries if key.attempt_id == attempt_id]
        await self._stop(keys)

    async def close(self) -> None:
        """End all processes."""
        await self._stop(list(self._entries))

    async def _stop(self, keys: list[EnvironmentKey]) -> None:
        starts = [entry.start for key in keys if (entry := self._entries.pop(key)).start]
        for start in starts:
            assert start is not None
            start.cancel()
            await asyncio.wait({start})
            if not start.cancelled() and start.exception() is None:
                await start.result().stop()

    async def _started(
        self, key: EnvironmentKey, package: Package, config: Mapping[str, Json]
    ) -> EnvironmentProcess:
        entry = self._entries[key]
        if entry.deaths > DEATHS_MAX:
            raise EnvironmentCrashed(
                "process_exited", f"poison: died {entry.deaths} times in a row"
            )
        if entry.deaths:
            self.restarts += 1
            doubled = RESPAWN_PAUSE_S * 2 ** (entry.deaths - 1)
            await self._clock.sleep(min(doubled, RESPAWN_PAUSE_MAX_S))
        return await self._start(key, package, config)

    def _count_death(self, key: EnvironmentKey, entry: _Entry) -> None:
        assert entry.start is not None
        error = None if entry.start.cancelled() else entry.start.exception()
        fault = entry.start.result().fault if error is None else error
        entry.deaths += 1
        get_logger().warning(
            "environment.died",
            attempt_id=key.attempt_id,
            environment_version_id=key.version_id,
            deaths=entry.deaths,
            cause=str(fault),
        )


def _has_ended(start: "asyncio.Task[EnvironmentProcess]", or_starting: bool = False) -> bool:
    """Whether there is no process behind it any more (or, if asked, not yet)."""
    if not start.done():
        return or_starting
    return start.cancelled() or start.exception() is not None or start.result().fault is not None
