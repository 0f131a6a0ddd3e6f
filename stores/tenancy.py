"""Organizations and projects."""

from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page


async def create_organization(connection: AsyncConnection, id: str, name: str) -> Row[Any]:
    """Insert an organization."""
    query = insert(t.organization).values(id=id, name=name).returning(t.organization)
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def organizations(
    connection: AsyncConnection, organization_id: str | None, request: PageRequest
) -> PageOfRows:
    """The caller's organization, or all of them for the installation's admin key."""
    query = select(t.organization)
    if organization_id is not None:
        query = query.where(t.organization.c.id == organization_id)
    return await fetch_page(connection, query, t.organization.c.id, request)


async def organization_exists(connection: AsyncConnection, organization_id: str) -> bool:
    """Whether there is such an organization."""
    query = select(t.organization.c.id).where(t.organization.c.id == organization_id)
    return (await connection.execute(query)).first() is not None


async def create_project(
    connection: AsyncConnection, id: str, organization_id: str, name: str
) -> Row[Any] | None:
    """Insert a project; None when the organization has one of this name."""
    query = (
        upsert(t.project)
        .values(id=id, organization_id=organization_id, name=name)
        .on_conflict_do_nothing()
        .returning(t.project)
    )
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def projects(
    connection: AsyncConnection, organization_id: str, request: PageRequest
) -> PageOfRows:
    """Projects of an organization."""
    query = select(t.project).where(t.project.c.organization_id == organization_id)
    return await fetch_page(connection, query, t.project.c.id, request)


async def find_project(
    connection: AsyncConnection, organization_id: str | None, project_id: str
) -> Row[Any] | None:
    """A project; of any organization for the installation's admin key (None)."""
    query = select(t.project).where(t.project.c.id == project_id)
    if organization_id is not None:
        query = query.where(t.project.c.organization_id == organization_id)
    return (await connection.execute(query)).first()
