"""Lines of stored outputs, read page by page in the order in which their printers ended."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Finding, invalid
from domain.errors import PayloadUnreadable
from stores import outputs
from stores.outputs import Wanted
from venusrl.models.common import Page
from venusrl.models.logs import LogLine

OUTPUTS_MAX: Final = 64
"""Outputs that one page reads; at 64 KiB each this bounds its answer."""

READS_AT_ONCE: Final = 8
"""Of the object store, for one page."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page begins: behind a line of an output."""

    output_id: str
    line: int


def place_of(after: str | None) -> Place | None:
    """The place that a line's id names. Raises 422 for what is none."""
    if after is None:
        return None
    output_id, _, line = after.rpartition(":")
    if not output_id or not (line.isascii() and line.isdigit() and len(line) <= 9):
        raise invalid([Finding("/query/after", "bad_cursor", "This is no id of a line.")])
    return Place(output_id, int(line))


async def page(
    gateway: Gateway, caller: ProjectCaller, wanted: Wanted, after: str | None, limit: int
) -> Page[LogLine]:
    """Up to `limit` lines; fewer where many outputs are short, and then `has_more` says so."""
    place = place_of(after)
    asked = replace(wanted, since=None if place is None else place.output_id, limit=OUTPUTS_MAX + 1)
    async with gateway.database.begin() as connection:
        rows = await outputs.listed(connection, caller.project_id, asked)
    chosen = _enough(rows[:OUTPUTS_MAX], place, limit)
    lines: list[LogLine] = []
    for found in await _read(gateway, chosen):
        lines += [one for one in found if place is None or _is_behind(one.id, place)]
    has_more = len(lines) > limit or len(chosen) < len(rows)
    data = lines[:limit]
    last = data[-1].id if data else (f"{chosen[-1].id}:{chosen[-1].lines}" if chosen else None)
    return Page[LogLine](data=data, has_more=has_more, next=last if has_more else None)


def _enough(rows: Sequence[Any], place: Place | None, limit: int) -> list[Any]:
    """The first outputs that together have more than a page of lines."""
    chosen: list[Any] = []
    count = 0
    for row in rows:
        if count > limit:
            break
        seen = place.line + 1 if place is not None and row.id == place.output_id else 0
        count += max(0, row.lines - seen)
        chosen.append(row)
    return chosen


def _is_behind(line_id: str, place: Place) -> bool:
    output_id, _, line = line_id.rpartition(":")
    return output_id != place.output_id or int(line) > place.line


async def _read(gateway: Gateway, rows: Sequence[Any]) -> list[list[LogLine]]:
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def one(row: Any) -> list[LogLine]:
        async with gate:
            try:
                data = await gateway.blobs.read(row.uri, row.sha)
            except PayloadUnreadable:
                # Its retention, or its job's end of life, came between the row and the object.
                return [_line(row, 0, (0.0, "[this output is gone]"))]
        pairs = [json.loads(line) for line in data.decode("utf-8", "replace").splitlines()]
        return [_line(row, number, pair) for number, pair in enumerate(pairs)]

    return list(await asyncio.gather(*(one(row) for row in rows)))


def _line(row: Any, number: int, pair: Sequence[Any]) -> LogLine:
    seconds, text = pair
    return LogLine(
        id=f"{row.id}:{number}",
        at=row.started_at + timedelta(seconds=float(seconds)),
        component=row.component,
        attempt_id=row.attempt_id,
        host_id=row.host_id,
        rollout_id=row.rollout_id,
        try_number=row._mapping["try"],
        text=str(text),
        lost_before=row.lost if number == 0 else 0,
    )
