"""Environments and their immutable, content-addressed versions, by project."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH, insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.states import TERMINAL
from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

environment, version = t.environment, t.environment_version

IS_LIVE = environment.c.deleted_at.is_(None)

ENDED = tuple(sorted(TERMINAL))
"""States of jobs that need no environment any more, until they are restarted."""


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
    state: str = "validating"
    is_draft: bool = False


async def ensure(connection: AsyncConnection, owner: Owner, id: str, name: str) -> Row[Any]:
    """The environment of this name, created if need be, locked until the transaction ends.

    Its versions are numbered on from those of a deleted one of this name: `name@version` means one
    package for ever, also to a job that is restarted after the deletion.
    """
    former = select(func.coalesce(func.max(environment.c.latest_version), 0)).where(
        environment.c.project_id == owner.project_id, environment.c.name == name
    )
    await connection.execute(
        insert(environment)
        .values(
            id=id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            name=name,
            latest_version=former.scalar_subquery(),
        )
        .on_conflict_do_nothing()
    )
    query = select(environment).where(_is_named(owner.project_id, name)).with_for_update()
    return (await connection.execute(query)).one()


async def add_version(
    connection: AsyncConnection, owner: Owner, environment_id: str, new: NewVersion
) -> Row[Any]:
    """Add a version; the same content is the version that exists."""
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
            state=new.state,
            is_draft=new.is_draft,
        )
        .returning(version)
    )
    row: Row[Any] = inserted.one()
    return row


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Environments of a project."""
    query = select(environment).where(environment.c.project_id == project_id, IS_LIVE)
    return await fetch_page(connection, query, environment.c.id, request)


async def names(connection: AsyncConnection, project_id: str) -> list[str]:
    """All names of a project, for near-name hints."""
    query = select(environment.c.name).where(environment.c.project_id == project_id, IS_LIVE)
    return list((await connection.execute(query.order_by(environment.c.name))).scalars())


async def find(
    connection: AsyncConnection, project_id: str, name: str, *, lock: bool = False
) -> Row[Any] | None:
    """An environment by name."""
    query = select(environment).where(_is_named(project_id, name))
    query = query.with_for_update() if lock else query
    return (await connection.execute(query)).first()


async def versions(connection: AsyncConnection, project_id: str, name: str) -> Sequence[Row[Any]]:
    """All versions of an environment, oldest first."""
    query = _versions(project_id, name).order_by(version.c.version)
    rows: Sequence[Row[Any]] = (await connection.execute(query)).all()
    return rows


def _versions(project_id: str, name: str) -> Select[Any]:
    return (
        select(version)
        .join(environment, environment.c.id == version.c.environment_id)
        .where(_is_named(project_id, name))
    )


def _is_named(project_id: str, name: str) -> ColumnElement[bool]:
    return and_(environment.c.project_id == project_id, environment.c.name == name, IS_LIVE)


async def find_any_version(
    connection: AsyncConnection, project_id: str, name: str, number: int, *, lock: bool = False
) -> Row[Any] | None:
    """A version in any state."""
    query = _versions(project_id, name).where(version.c.version == number)
    query = query.with_for_update(of=version) if lock else query
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def change_version(connection: AsyncConnection, version_id: str, **values: Any) -> Row[Any]:
    """Write columns of a version that its caller holds locked."""
    query = update(version).where(version.c.id == version_id).values(values).returning(version)
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def yank(connection: AsyncConnection, version_id: str, reason: str) -> Row[Any]:
    """Refuse the version to new jobs; the time of the first yank stays."""
    since = func.coalesce(version.c.yanked_at, func.now())
    return await change_version(connection, version_id, yanked_at=since, yank_reason=reason or None)


async def job_using(connection: AsyncConnection, environment_id: str) -> str | None:
    """A job that has not ended and trains or evaluates on a version of this environment."""
    named = [
        func.jsonb_path_query_array(t.job.c.spec, cast(path, JSONPATH), type_=JSONB)
        for path in ("$.environments[*].ref", "$.evaluation.environments[*].ref")
    ]
    reference = environment.c.name + "@" + cast(version.c.version, Text)
    query = (
        select(t.job.c.id)
        .join(environment, environment.c.project_id == t.job.c.project_id)
        .join(version, version.c.environment_id == environment.c.id)
        .where(
            environment.c.id == environment_id,
            t.job.c.state.not_in(ENDED),
            or_(*(one.has_key(reference) for one in named)),
        )
        .order_by(t.job.c.id)
        .limit(1)
    )
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def delete(connection: AsyncConnection, environment_id: str) -> None:
    """Hide an environment and free its name; rows and packages stay for the jobs that used them."""
    await connection.execute(
        update(environment).where(environment.c.id == environment_id).values(deleted_at=func.now())
    )


async def open_operation(
    connection: AsyncConnection, version_id: str, kind: str
) -> Row[Any] | None:
    """An operation of this kind on the version that has not ended."""
    operation = t.operation
    query = select(operation).where(
        operation.c.kind == kind,
        operation.c.ended_at.is_(None),
        operation.c.request["environment_version_id"].astext == version_id,
    )
    return (await connection.execute(query.limit(1))).first()
