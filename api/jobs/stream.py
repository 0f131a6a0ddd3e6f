"""Live job events as server-sent events: ids are the job's sequence numbers, so that a reconnect with
`Last-Event-ID` misses and repeats nothing. Read by level from Postgres; notifications are a later matter.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from fastapi import Request

from api.gateway import Gateway
from domain.states import TERMINAL
from stores import jobs
from venusrl.models.jobs import Event

POLL_S: Final = 0.25
"""How late an event reaches a listener."""

HEARTBEAT_S: Final = 15.0
"""A comment is sent after this silence, so that proxies keep the connection."""


def event_of(row: Any) -> Event:
    """Wire form of an event row."""
    return Event(id=row.seq, type=row.type, body=row.body, created_at=row.created_at)


async def follow(
    gateway: Gateway, project_id: str, job_id: str, after: int, *, types: Sequence[str]
) -> AsyncIterator[str]:
    """Frames of all events above `after`; ends after the last event of an ended job."""
    quiet_since = time.monotonic()
    yield "retry: 1000\n\n"
    while True:
        async with gateway.database.begin() as connection:
            job = await jobs.find(connection, project_id, job_id)
            rows = await jobs.events_after(connection, project_id, job_id, after, types=types)
        for row in rows:
            event = event_of(row)
            after = event.id
            yield f"id: {event.id}\nevent: {event.type}\ndata: {event.model_dump_json()}\n\n"
        if not rows and (job is None or job.state in TERMINAL):
            yield "event: end\ndata: {}\n\n"
            return
        if rows:
            quiet_since = time.monotonic()
            continue
        if time.monotonic() - quiet_since > HEARTBEAT_S:
            quiet_since = time.monotonic()
            yield ": alive\n\n"
        await asyncio.sleep(POLL_S)


async def until_disconnected(request: Request, source: AsyncIterator[str]) -> AsyncIterator[str]:
    """Stop reading the database as soon as the listener is gone."""
    async for frame in source:
        if await request.is_disconnected():
            return
        yield frame
