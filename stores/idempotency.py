"""Idempotency keys: a unique row per (scope, key), kept for a day."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t

KEPT: Final = timedelta(hours=24)
"""Promised to clients: retries within it repeat the answer."""

SWEPT_MAX: Final = 100
"""Expired rows that one request takes away: more than it adds, and soon done."""

row = t.idempotency


@dataclass(frozen=True, slots=True)
class Stored:
    """An earlier request under this key."""

    request_sha: str
    status: int | None
    response: Any


async def take(
    connection: AsyncConnection, scope: str, key: str, request_sha: str
) -> Stored | None:
    """Claim the key for this transaction, or return what an earlier one stored."""
    is_expired = (row.c.scope == scope) & (row.c.created_at < func.now() - KEPT)
    await connection.execute(delete(row).where(is_expired, row.c.key == key))
    others = select(row.c.key).where(is_expired).limit(SWEPT_MAX).with_for_update(skip_locked=True)
    await connection.execute(delete(row).where(row.c.scope == scope, row.c.key.in_(others)))
    claim = (
        insert(row)
        .values(scope=scope, key=key, request_sha=request_sha)
        .on_conflict_do_nothing()
        .returning(row.c.key)
    )
    if (await connection.execute(claim)).first() is not None:
        return None
    query = select(row.c.request_sha, row.c.status, row.c.response).where(
        row.c.scope == scope, row.c.key == key
    )
    found = (await connection.execute(query)).one()
    return Stored(found.request_sha, found.status, found.response)


async def answer(
    connection: AsyncConnection, scope: str, key: str, status: int, response: Any
) -> None:
    """Store the answer that a retry repeats."""
    await connection.execute(
        update(row)
        .where(row.c.scope == scope, row.c.key == key)
        .values(status=status, response=response)
    )
