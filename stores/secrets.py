"""Secrets of a project, sealed. No query of the gateway reads a value."""

from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page
from stores.secret_tables import secret

SHOWN: Final = (secret.c.id, secret.c.name, secret.c.created_at, secret.c.updated_at)

JOBS_READ_MAX: Final = 1000
"""Open jobs looked through for one that names a secret; a project has far fewer."""


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A sealed value under its name."""

    id: str
    name: str
    sealed: bytes = field(repr=False)


async def put(connection: AsyncConnection, owner: Owner, new: NewSecret) -> Row[Any]:
    """Write a secret, over the one of this name if there is one."""
    query = (
        insert(secret)
        .values(
            id=new.id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            name=new.name,
            sealed=new.sealed,
        )
        .on_conflict_do_update(
            index_elements=[secret.c.project_id, secret.c.name],
            set_={"sealed": new.sealed, "updated_at": func.now()},
        )
        .returning(*SHOWN)
    )
    return (await connection.execute(query)).one()


async def count(connection: AsyncConnection, project_id: str, but: str) -> int:
    """How many secrets a project has beside the one of this name."""
    query = select(func.count()).where(secret.c.project_id == project_id, secret.c.name != but)
    return int((await connection.execute(query)).scalar_one())


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Secrets of a project, without values."""
    query = select(*SHOWN).where(secret.c.project_id == project_id)
    return await fetch_page(connection, query, secret.c.id, request)


async def names(connection: AsyncConnection, project_id: str) -> list[str]:
    """Names of a project's secrets, in order."""
    query = select(secret.c.name).where(secret.c.project_id == project_id)
    return list((await connection.execute(query.order_by(secret.c.name))).scalars())


async def delete(connection: AsyncConnection, project_id: str, name: str) -> bool:
    """Delete a secret; False when there is none of this name."""
    query = delete_from(secret).where(secret.c.project_id == project_id, secret.c.name == name)
    return bool((await connection.execute(query)).rowcount)


async def job_using(connection: AsyncConnection, project_id: str, name: str) -> str | None:
    """A job that has not ended and names this secret."""
    spec = t.job.c.spec
    query = (
        select(t.job.c.id, spec["secrets"].label("secrets"), spec["judges"].label("judges"))
        .where(t.job.c.project_id == project_id, t.job.c.ended_at.is_(None))
        .limit(JOBS_READ_MAX)
    )
    for row in await connection.execute(query):
        judges = (row.judges or {}).values()
        if name in (row.secrets or {}).values() or name in {one["secret"] for one in judges}:
            return str(row.id)
    return None
