"""Audit events: appended in the transaction of what they tell of, read by their tenant, never changed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Text, func, insert, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from infra.ids import TIME_CHARACTERS, encode
from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

event = t.audit_event

ID_PREFIX: Final = "aud"

SYSTEM: Final = "system"
"""Actor of what the platform did by itself."""

CLOCKS_APART: Final = timedelta(minutes=5)
"""Ids have the gateway's time, rows that of the database: bounds of ids are wider by this."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One call. No field ever holds a body or a secret."""

    id: str
    organization_id: str | None
    project_id: str | None
    actor: str
    action: str
    target: str | None
    part: str | None
    created: str | None
    address: str
    request_id: str
    outcome: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters of a list."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def append(connection: AsyncConnection, one: AuditEvent) -> None:
    """Write the event."""
    await connection.execute(insert(event).values(**asdict(one)))


async def append_if_written(connection: AsyncConnection, one: AuditEvent) -> bool:
    """Write the event if this transaction has written or locked anything; whether it has."""
    columns = asdict(one)
    values = [literal(value, Text).label(name) for name, value in columns.items()]
    has_written = func.pg_current_xact_id_if_assigned().is_not(None)
    query = insert(event).from_select(list(columns), select(*values).where(has_written))
    return (await connection.execute(query)).rowcount == 1


async def page(
    connection: AsyncConnection,
    organization_id: str | None,
    project_id: str | None,
    wanted: Wanted,
    request: PageRequest,
) -> PageOfRows:
    """Events of a project, of an organization, or all of them for the installation's admin."""
    query = select(event).where(*_scope(organization_id, project_id), *_filters(wanted))
    return await fetch_page(connection, query, event.c.id, request)


def _scope(organization_id: str | None, project_id: str | None) -> Sequence[ColumnElement[Any]]:
    if project_id is not None:
        return (event.c.organization_id == organization_id, event.c.project_id == project_id)
    return () if organization_id is None else (event.c.organization_id == organization_id,)


def _filters(wanted: Wanted) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for column in (event.c.actor, event.c.action, event.c.outcome):
        value = getattr(wanted, column.name)
        if value is not None:
            found.append(column == value)
    if wanted.target is not None:
        found.append(or_(event.c.target == wanted.target, event.c.created == wanted.target))
    if wanted.since is not None:
        found.append(event.c.created_at >= wanted.since)
        found.append(event.c.id >= _first_id(wanted.since, -CLOCKS_APART))
    if wanted.until is not None:
        found.append(event.c.created_at < wanted.until)
        found.append(event.c.id < _first_id(wanted.until, CLOCKS_APART))
    return found


def _first_id(at: datetime, apart: timedelta) -> str:
    """The smallest id of that time: lists by time walk the same index as lists by id."""
    milliseconds = int(at.timestamp() * 1000) + int(apart.total_seconds() * 1000)
    return f"{ID_PREFIX}_{encode(max(0, milliseconds), TIME_CHARACTERS)}"
