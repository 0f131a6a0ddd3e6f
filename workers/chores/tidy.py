"""`python -m workers.chores.tidy`: deletes segments of the event log past their age.

The log is for diagnosis; what a job made is kept elsewhere by its own rules. A segment's name says
its age, so that nothing is read, and deleting what is gone already is harmless.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from domain.errors import PayloadUnreadable
from infra.logging import configure, get_logger
from infra.names import EVENT_LOG_FOLDER, first_ms_of
from infra.settings import Settings
from stores.blobs import Blobs

LOG_AGE_S: Final = 14 * 24 * 3600.0
"""How long a segment stays: a stall is looked into within days, and a pool's log is some 100 MB a day."""

SEGMENTS_MAX: Final = 200_000
"""Segments that stay at all, the newest: bounds a store that many leaders wrote to."""


async def tidy(blobs: Blobs, now: float) -> int:
    """Delete what is too old or too much; how many segments went. Raises PayloadUnreadable."""
    paths = await blobs.paths(EVENT_LOG_FOLDER)
    gone = surplus(paths, now)
    for path in gone:
        await blobs.delete(path)
    return len(gone)


def surplus(paths: Sequence[str], now: float) -> list[str]:
    """The segments that go, oldest first."""
    dated = sorted(
        (first_ms, path) for path in paths if (first_ms := first_ms_of(path)) is not None
    )
    oldest_ms = (now - LOG_AGE_S) * 1000.0
    many = max(len(dated) - SEGMENTS_MAX, 0)
    return [path for place, (ms, path) in enumerate(dated) if ms < oldest_ms or place < many]


async def _main() -> int:
    try:
        gone = await tidy(Blobs(Settings.from_env().object_store_url), time.time())
    except PayloadUnreadable as error:
        get_logger().warning("event_log.not_tidied", cause=str(error))
        return 1
    get_logger().info("event_log.tidied", segments=gone)
    return 0


if __name__ == "__main__":
    configure("chore", Settings.from_env().log_level)
    sys.exit(asyncio.run(_main()))
