"""Streams the trajectories of a job: one page of rows at a time, its objects read side by side.

Memory holds one page. A rollout whose object is damaged or missing is a record that says so: one
rotten object must not cost the other million.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Problem
from api.rollouts.parquet import ParquetStream
from api.rollouts.records import NO_TRAJECTORY, UNREADABLE, record_of
from domain.errors import PayloadUnreadable
from domain.trajectory import Trajectory as StoredTrajectory
from infra.codec import from_msgpack
from stores import rollouts
from stores.paging import PageRequest
from stores.rollouts import Filters

Format = Literal["jsonl", "parquet"]

MEDIA_TYPES: Final = {
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}

PAGE: Final = 100
"""Rollouts held in memory at once, and rows of one Parquet row group."""

READS_AT_ONCE: Final = 8
"""Objects read side by side: enough to hide their latency, few enough for other requests."""


@dataclass(frozen=True, slots=True)
class Wish:
    """Which rollouts are wanted; `after` goes on behind one."""

    job_id: str
    filters: Filters
    after: str | None = None


def stream(
    gateway: Gateway, caller: ProjectCaller, wish: Wish, format_: Format
) -> AsyncIterator[bytes]:
    """The export's bytes. Raises Problem at once where the format cannot be written here."""
    if format_ == "jsonl":
        return _jsonl(gateway, caller, wish)
    try:
        writer = ParquetStream()
    except ImportError as error:
        detail = "This server has no pyarrow; ask for format=jsonl."
        raise Problem(503, "unavailable", detail) from error
    return _parquet(gateway, caller, wish, writer)


async def _jsonl(gateway: Gateway, caller: ProjectCaller, wish: Wish) -> AsyncIterator[bytes]:
    async for records in _pages(gateway, caller, wish):
        yield await asyncio.to_thread(_lines, records)


def _lines(records: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(one, separators=(',', ':'))}\n" for one in records).encode()


async def _parquet(
    gateway: Gateway, caller: ProjectCaller, wish: Wish, writer: ParquetStream
) -> AsyncIterator[bytes]:
    async for records in _pages(gateway, caller, wish):
        yield await asyncio.to_thread(writer.add, records)
    yield await asyncio.to_thread(writer.end)


async def _pages(
    gateway: Gateway, caller: ProjectCaller, wish: Wish
) -> AsyncIterator[list[dict[str, Any]]]:
    request = PageRequest(limit=PAGE, after=wish.after)
    reading = asyncio.Semaphore(READS_AT_ONCE)
    while True:
        async with gateway.database.begin() as connection:
            found = await rollouts.page(
                connection, caller.project_id, wish.job_id, filters=wish.filters, request=request
            )
        if found.rows:
            yield list(await asyncio.gather(*(_record(gateway, reading, r) for r in found.rows)))
        if not found.has_more:
            return
        request = PageRequest(limit=PAGE, after=found.rows[-1].id)


async def _record(gateway: Gateway, reading: asyncio.Semaphore, row: Any) -> dict[str, Any]:
    columns = dict(row._mapping)
    if row.trajectory_uri is None:
        return record_of(columns, None, NO_TRAJECTORY)
    async with reading:
        try:
            data = await gateway.blobs.read(row.trajectory_uri, row.trajectory_sha)
            stored = await asyncio.to_thread(from_msgpack, data, StoredTrajectory)
        except (PayloadUnreadable, msgspec.MsgspecError):
            return record_of(columns, None, UNREADABLE)
    return record_of(columns, stored, None)
