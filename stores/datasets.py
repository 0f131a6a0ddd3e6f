"""Datasets of a project and their immutable versions, by content."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.asset_tables import dataset, dataset_version
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page

version = dataset_version


@dataclass(frozen=True, slots=True)
class NewDatasetVersion:
    """Uploaded splits whose rows have not been looked at."""

    id: str
    content_sha: str
    files: Mapping[str, Mapping[str, Any]]


async def ensure(connection: AsyncConnection, owner: Owner, id: str, name: str) -> Row[Any]:
    """The dataset of this name, created if need be, locked until the transaction ends."""
    await connection.execute(
        insert(dataset)
        .values(
            id=id, organization_id=owner.organization_id, project_id=owner.project_id, name=name
        )
        .on_conflict_do_nothing()
    )
    return (await connection.execute(_named(owner.project_id, name).with_for_update())).one()


async def find(
    connection: AsyncConnection, project_id: str, name: str, *, lock: bool = False
) -> Row[Any] | None:
    """A dataset by name."""
    query = _named(project_id, name)
    return (await connection.execute(query.with_for_update() if lock else query)).first()


def _named(project_id: str, name: str) -> Any:
    return select(dataset).where(
        dataset.c.project_id == project_id,
        dataset.c.name == name,
        dataset.c.deleted_at.is_(None),
    )


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Datasets of a project."""
    query = select(dataset).where(
        dataset.c.project_id == project_id, dataset.c.deleted_at.is_(None)
    )
    return await fetch_page(connection, query, dataset.c.id, request)


async def names(connection: AsyncConnection, project_id: str) -> list[str]:
    """All names of a project, for near-name hints."""
    query = select(dataset.c.name).where(
        dataset.c.project_id == project_id, dataset.c.deleted_at.is_(None)
    )
    return list((await connection.execute(query.order_by(dataset.c.name))).scalars())


async def add_version(
    connection: AsyncConnection, dataset_id: str, new: NewDatasetVersion
) -> Row[Any]:
    """Add a version in state `validating`; the same content is the version that exists.

    The caller holds the dataset's row.
    """
    same = select(version).where(
        version.c.dataset_id == dataset_id, version.c.content_sha == new.content_sha
    )
    if (found := (await connection.execute(same)).first()) is not None:
        return found
    raised = (
        update(dataset)
        .where(dataset.c.id == dataset_id)
        .values(latest_version=dataset.c.latest_version + 1)
        .returning(dataset.c.latest_version)
    )
    query = (
        insert(version)
        .values(
            id=new.id,
            dataset_id=dataset_id,
            version=(await connection.execute(raised)).scalar_one(),
            content_sha=new.content_sha,
            state="validating",
            files={split: dict(one) for split, one in new.files.items()},
        )
        .returning(version)
    )
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def versions(
    connection: AsyncConnection, project_id: str, name: str, request: PageRequest
) -> PageOfRows:
    """Versions of a dataset."""
    return await fetch_page(connection, _versions(project_id, name), version.c.id, request)


async def all_versions(
    connection: AsyncConnection, project_id: str, name: str
) -> Sequence[Row[Any]]:
    """Versions of a dataset, oldest first."""
    query = _versions(project_id, name).order_by(version.c.version)
    rows: Sequence[Row[Any]] = (await connection.execute(query)).all()
    return rows


def _versions(project_id: str, name: str) -> Any:
    return (
        select(version)
        .join(dataset, dataset.c.id == version.c.dataset_id)
        .where(
            dataset.c.project_id == project_id,
            dataset.c.name == name,
            dataset.c.deleted_at.is_(None),
        )
    )


async def find_version(
    connection: AsyncConnection, project_id: str, name: str, number: int | None
) -> Row[Any] | None:
    """A version in any state; without a number the newest ready one."""
    query = _versions(project_id, name).order_by(version.c.version.desc()).limit(1)
    is_wanted = version.c.state == "ready" if number is None else version.c.version == number
    return (await connection.execute(query.where(is_wanted))).first()


async def job_using(connection: AsyncConnection, project_id: str, name: str) -> str | None:
    """A job that still loads its tasks, and takes some from this dataset."""
    query = select(t.job.c.id).where(
        t.job.c.project_id == project_id,
        t.job.c.state == "validating",
        text(
            "exists (select 1 from jsonb_path_query("
            "job.spec, '$.**{0 to 1}.environments[*].datasets[*].ref') r"
            " where split_part(r #>> '{}', '@', 1) = :dataset_name)"
        ).bindparams(dataset_name=name),
    )
    found: str | None = (await connection.execute(query.limit(1))).scalar_one_or_none()
    return found


async def delete(connection: AsyncConnection, dataset_id: str) -> None:
    """Delete a dataset; its name is free again."""
    await connection.execute(
        update(dataset).where(dataset.c.id == dataset_id).values(deleted_at=func.now())
    )


async def files_of(connection: AsyncConnection, dataset_id: str) -> list[str]:
    """Objects of all versions."""
    query = select(version.c.files).where(version.c.dataset_id == dataset_id)
    found = (await connection.execute(query)).scalars()
    return [str(one["uri"]) for files in found for one in files.values()]
