"""API keys, by the hash of their secret."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t

key = t.api_key


async def find_active(connection: AsyncConnection, secret_hash: str) -> Row[Any] | None:
    """The key with this hash unless it is revoked or expired."""
    query = select(key).where(
        key.c.secret_hash == secret_hash,
        key.c.revoked_at.is_(None),
        or_(key.c.expires_at.is_(None), key.c.expires_at > func.now()),
    )
    return (await connection.execute(query)).first()


async def create(connection: AsyncConnection, **values: object) -> Row[Any]:
    """Insert a key and return its row."""
    row: Row[Any] = (await connection.execute(insert(key).values(**values).returning(key))).one()
    return row


async def list_of(
    connection: AsyncConnection, organization_id: str, project_id: str | None
) -> Sequence[Row[Any]]:
    """Keys of an organization, or of one project of it, newest last."""
    query = select(key).where(key.c.organization_id == organization_id).order_by(key.c.id)
    if project_id is not None:
        query = query.where(key.c.project_id == project_id)
    return (await connection.execute(query)).all()


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
