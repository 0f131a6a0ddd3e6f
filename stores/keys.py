"""API keys, by the hash of their secret."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import DateTime, func, insert, literal, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

key = t.api_key


async def find_active(connection: AsyncConnection, secret_hash: str) -> Row[Any] | None:
    """The key with this hash unless it is revoked or expired."""
    query = select(key).where(
        key.c.secret_hash == secret_hash,
        key.c.revoked_at.is_(None),
        or_(key.c.expires_at.is_(None), key.c.expires_at > func.now()),
    )
    return (await connection.execute(query)).first()


async def is_past(connection: AsyncConnection, moment: datetime) -> bool:
    """Whether a key with this end would be refused, by the clock that refuses it."""
    return bool(
        await connection.scalar(select(literal(moment, DateTime(timezone=True)) <= func.now()))
    )


async def create(connection: AsyncConnection, **values: object) -> Row[Any]:
    """Insert a key and return its row."""
    row: Row[Any] = (await connection.execute(insert(key).values(**values).returning(key))).one()
    return row


async def page(
    connection: AsyncConnection,
    organization_id: str,
    project_id: str | None,
    request: PageRequest,
) -> PageOfRows:
    """Keys of an organization, or of one project of it."""
    query = select(key).where(key.c.organization_id == organization_id)
    if project_id is not None:
        query = query.where(key.c.project_id == project_id)
    return await fetch_page(connection, query, key.c.id, request)


async def find(
    connection: AsyncConnection,
    organization_id: str | None,
    project_id: str | None,
    key_id: str,
    *,
    lock: bool = False,
) -> Row[Any] | None:
    """A key in the scope, revoked ones too.

    No organization: any key, for the installation's admin. No project: any key of the organization.
    """
    query = select(key).where(key.c.id == key_id)
    if project_id is not None:
        query = query.where(key.c.project_id == project_id)
    if organization_id is not None:
        query = query.where(key.c.organization_id == organization_id)
    return (await connection.execute(query.with_for_update() if lock else query)).first()


async def expire_within(connection: AsyncConnection, key_id: str, seconds: int) -> None:
    """End a key so many seconds from now, or at its own earlier end; 0 revokes it at once."""
    if seconds == 0:
        ends = update(key).values(revoked_at=func.coalesce(key.c.revoked_at, func.now()))
    else:
        end = func.now() + timedelta(seconds=seconds)
        ends = update(key).values(expires_at=func.least(func.coalesce(key.c.expires_at, end), end))
    await connection.execute(ends.where(key.c.id == key_id))


async def revoke(
    connection: AsyncConnection, organization_id: str | None, project_id: str | None, key_id: str
) -> bool:
    """Revoke a key; False when there is none.

    No organization: any key, for the installation's admin. No project: any key of the organization.
    """
    query = update(key).where(key.c.id == key_id)
    if project_id is not None:
        query = query.where(key.c.project_id == project_id)
    if organization_id is not None:
        query = query.where(key.c.organization_id == organization_id)
    result = await connection.execute(
        query.values(revoked_at=func.coalesce(key.c.revoked_at, func.now()))
    )
    return result.rowcount == 1


async def bootstrap_exists(connection: AsyncConnection, secret_hash: str) -> bool:
    """Whether this bootstrap key is stored already."""
    query = select(key.c.id).where(key.c.secret_hash == secret_hash)
    return (await connection.execute(query)).first() is not None
