"""Sealed secrets for the processes that open them: nodes and chores."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.secret_tables import secret


@dataclass(frozen=True, slots=True)
class JobGrants:
    """What a job gives its environment: variables and judges, as its spec names them."""

    project_id: str
    secrets: Mapping[str, str]
    judges: Mapping[str, Mapping[str, Any]]


async def grants_of_attempt(connection: AsyncConnection, attempt_id: str) -> JobGrants | None:
    """What the attempt's job gives; None when there is no such attempt."""
    query = (
        select(t.job.c.project_id, t.job.c.spec)
        .join(t.attempt, t.attempt.c.job_id == t.job.c.id)
        .where(t.attempt.c.id == attempt_id)
    )
    return _grants((await connection.execute(query)).first())


async def grants_of_job(connection: AsyncConnection, job_id: str) -> JobGrants | None:
    """What a job gives; None when there is no such job."""
    query = select(t.job.c.project_id, t.job.c.spec).where(t.job.c.id == job_id)
    return _grants((await connection.execute(query)).first())


async def project_of_version(connection: AsyncConnection, version_id: str) -> str | None:
    """The project that owns an environment version."""
    version, environment = t.environment_version, t.environment
    query = (
        select(environment.c.project_id)
        .join(version, version.c.environment_id == environment.c.id)
        .where(version.c.id == version_id)
    )
    found: str | None = (await connection.execute(query)).scalar_one_or_none()
    return found


async def sealed(
    connection: AsyncConnection, project_id: str, names: Iterable[str]
) -> dict[str, bytes]:
    """Sealed values by name; what the project has not is missing."""
    query = select(secret.c.name, secret.c.sealed).where(
        secret.c.project_id == project_id, secret.c.name.in_(sorted(set(names)))
    )
    return {row.name: bytes(row.sealed) for row in await connection.execute(query)}


def _grants(row: Any) -> JobGrants | None:
    if row is None:
        return None
    return JobGrants(row.project_id, row.spec.get("secrets", {}), row.spec.get("judges", {}))
