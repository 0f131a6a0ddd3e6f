"""`python -m scheduler.main`: stand by, lead, step down.

A leader that cannot renew its term stops by its own monotonic clock before a standby may take over:
a thread of its own ends the process, so that a stopped process that wakes up acts no more.
"""

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import Final

import psycopg

from domain.errors import FencedOut
from infra import failpoints
from infra.broker import make_app
from infra.logging import configure, get_logger
from infra.settings import Settings
from scheduler.hosts import Hosts
from scheduler.leader import Leader
from stores.system.leadership import Leadership, Term
from stores.unit_of_work import Database

STAND_BY_S: Final = 0.3
"""Between two claims of a standby: a small part of the takeover time."""

GUARD_SHARE: Final = 0.7
"""A leader ends itself after this share of the heartbeat limit, before a standby may take over."""

EXIT_STEPPED_DOWN: Final = 75
"""Exit status of a leader that lost its term; its supervisor starts a standby in its place."""


class _Guard:
    """Ends the process when the term was not renewed in time."""

    def __init__(self, ttl_s: float) -> None:
        self._limit_s = ttl_s * GUARD_SHARE
        self._renewed = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def renewed(self, asked_at: float) -> None:
        """The row was renewed by a query that began at this reading."""
        self._renewed = asked_at

    def _watch(self) -> None:
        while time.monotonic() - self._renewed < self._limit_s:
            time.sleep(0.05)
        os._exit(EXIT_STEPPED_DOWN)


async def main() -> int:
    """Run one scheduler until it is terminated or steps down."""
    settings = Settings.from_env()
    log = get_logger()
    leadership = Leadership(settings.database_url, settings.intervals.leader_ttl_s)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    database = Database(settings.database_url, settings.database_connections)
    shell: list[Leader] = []
    hosts = Hosts(
        key_of=lambda host, epoch: shell[0].key_of(host, epoch),
        on_snapshot=lambda joined: shell[0].on_snapshot(joined),
        on_frame=lambda peer, frame: shell[0].on_frame(peer, frame),
    )
    address = await hosts.open()
    asked_at, term = await _stand_by(leadership, address, stop)
    if term is None:
        return 0
    guard = _Guard(settings.intervals.leader_ttl_s)
    guard.renewed(asked_at)
    log.info("leader.elected", term=term.number, address=address)
    shell.append(Leader(settings, database, hosts, make_app(settings.broker_url), term))
    lead = asyncio.create_task(shell[0].run())
    beat = asyncio.create_task(_beat(leadership, term, guard, settings))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({lead, beat, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if stopped.done() and not lead.done():
        lead.cancel()
        with contextlib.suppress(asyncio.CancelledError, psycopg.Error):
            await asyncio.gather(lead, return_exceptions=True)
            await leadership.resign(term.number)
        return 0
    log.error("leader.stepped_down", error=repr(lead.exception()) if lead.done() else "term lost")
    if lead.done() and (error := lead.exception()) is not None and not _is_fenced(error):
        log.error("leader.crashed", exc_info=error)
    return EXIT_STEPPED_DOWN


def _is_fenced(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(FencedOut) is not None
    return isinstance(error, FencedOut)


async def _stand_by(
    leadership: Leadership, address: str, stop: asyncio.Event
) -> tuple[float, Term | None]:
    while not stop.is_set():
        asked_at = time.monotonic()
        try:
            term = await leadership.try_acquire(address)
        except psycopg.Error as error:
            get_logger().warning("leadership.unreachable", cause=str(error))
            await leadership.close()
            term = None
        if term is not None:
            return asked_at, term
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STAND_BY_S):
                await stop.wait()
    return 0.0, None


async def _beat(leadership: Leadership, term: Term, guard: _Guard, settings: Settings) -> None:
    """Renew until the term is lost; an unreachable database is tried again until the guard ends it."""
    while True:
        asked_at = time.monotonic()
        try:
            if not await leadership.beat(term.number):
                return
            guard.renewed(asked_at)
        except psycopg.Error as error:
            get_logger().warning("leadership.unreachable", cause=str(error))
        await asyncio.sleep(settings.intervals.leader_heartbeat_s)


if __name__ == "__main__":
    configure("scheduler", Settings.from_env().log_level)
    failpoints.configure("scheduler")
    os._exit(asyncio.run(main()))
