"""Organizations and projects."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t


async def create_organization(connection: AsyncConnection, id: str, name: str) -> Row[Any]:
    """Insert an organization."""
    query = insert(t.organization).values(id=id, name=name).returning(t.organization)
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def organizations(
    connection: AsyncConnection, organization_id: str | None
) -> Sequence[Row[Any]]:
    """The caller's organization, or all of them for the installation's admin key."""
    query = select(t.organization).order_by(t.organization.c.id)
    if organization_id is not None:
        query = query.where(t.organization.c.id == organization_id)
    return (await connection.execute(query)).all()


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


async def projects(connection: AsyncConnection, organization_id: str) -> Sequence[Row[Any]]:
    """Projects of an organization."""
    query = (
        select(t.project)
        .where(t.project.c.organization_id == organization_id)
        .order_by(t.project.c.id)
    )
    return (await connection.execute(query)).all()


async def find_project(
    connection: AsyncConnection, organization_id: str | None, project_id: str
) -> Row[Any] | None:
    """A project; of any organization for the installation's admin key (None)."""
    query = select(t.project).where(t.project.c.id == project_id)
    if organization_id is not None:
        query = query.where(t.project.c.organization_id == organization_id)
    return (await connection.execute(query)).first()
