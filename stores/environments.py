"""Environments and their immutable, content-addressed versions, by project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

environment, version = t.environment, t.environment_version


@dataclass(frozen=True, slots=True)
class Owner:
    """The project that owns what is written."""

    organization_id: str
    project_id: str


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A well-formed package whose code has not run yet."""

    id: str
    content_sha: str
    package_uri: str
    package_sha: str
    manifest: Mapping[str, Any]


async def ensure(connection: AsyncConnection, owner: Owner, id: str, name: str) -> Row[Any]:
    """The environment of this name, created if need be, locked until the transaction ends."""
    await connection.execute(
        insert(environment)
        .values(
            id=id, organization_id=owner.organization_id, project_id=owner.project_id, name=name
        )
        .on_conflict_do_nothing()
    )
    query = (
        select(environment)
        .where(environment.c.project_id == owner.project_id, environment.c.name == name)
        .with_for_update()
    )
    return (await connection.execute(query)).one()


async def add_version(
    connection: AsyncConnection, owner: Owner, environment_id: str, new: NewVersion
) -> Row[Any]:
    """Add a version in state `validating`; the same content is the version that exists."""
    await connection.execute(
        update(environment)
        .where(environment.c.id == environment_id, environment.c.project_id == owner.project_id)
        .values(latest_version=environment.c.latest_version)
    )
    existing = await connection.execute(
        select(version).where(
            version.c.environment_id == environment_id, version.c.content_sha == new.content_sha
        )
    )
    if (found := existing.first()) is not None:
        return found
    number = (
        await connection.execute(
            update(environment)
            .where(environment.c.id == environment_id)
            .values(latest_version=environment.c.latest_version + 1)
            .returning(environment.c.latest_version)
        )
    ).scalar_one()
    inserted = await connection.execute(
        insert(version)
        .values(
            id=new.id,
            environment_id=environment_id,
            version=number,
            content_sha=new.content_sha,
            package_uri=new.package_uri,
            package_sha=new.package_sha,
            manifest=dict(new.manifest),
            state="validating",
        )
        .returning(version)
    )
    row: Row[Any] = inserted.one()
    return row


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Environments of a project."""
    query = select(environment).where(environment.c.project_id == project_id)
    return await fetch_page(connection, query, environment.c.id, request)


async def names(connection: AsyncConnection, project_id: str) -> list[str]:
    """All names of a project, for near-name hints."""
    query = select(environment.c.name).where(environment.c.project_id == project_id)
    return list((await connection.execute(query.order_by(environment.c.name))).scalars())


async def find(connection: AsyncConnection, project_id: str, name: str) -> Row[Any] | None:
    """An environment by name."""
    query = select(environment).where(
        environment.c.project_id == project_id, environment.c.name == name
    )
    return (await connection.execute(query)).first()


async def versions(connection: AsyncConnection, project_id: str, name: str) -> Sequence[Row[Any]]:
    """All versions of an environment, oldest first."""
    query = (
        select(version)
        .join(environment, environment.c.id == version.c.environment_id)
        .where(environment.c.project_id == project_id, environment.c.name == name)
        .order_by(version.c.version)
    )
    return (await connection.execute(query)).all()


async def find_any_version(
    connection: AsyncConnection, project_id: str, name: str, number: int
) -> Row[Any] | None:
    """A version in any state."""
    found = await versions(connection, project_id, name)
    return next((row for row in found if row.version == number), None)


async def find_version(
    connection: AsyncConnection, project_id: str, name: str, number: int | None
) -> Row[Any] | None:
    """A ready version; the newest when no number is given."""
    query = (
        select(version)
        .join(environment, environment.c.id == version.c.environment_id)
        .where(
            environment.c.project_id == project_id,
            environment.c.name == name,
            version.c.state == "ready",
        )
        .order_by(version.c.version.desc())
        .limit(1)
    )
    if number is not None:
        query = query.where(version.c.version == number)
    return (await connection.execute(query)).first()
