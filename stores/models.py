"""Models of a project: imported once, immutable, named by a reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.asset_tables import model
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page

NAMES_MAX: Final = 500
"""References looked through for a near name: a hint, not a list."""


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that is about to be imported."""

    id: str
    name: str
    ref: str
    source: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]] = ()


async def create(connection: AsyncConnection, owner: Owner, new: NewModel) -> Row[Any] | None:
    """Insert a model in state `validating`; None when its name or reference is taken."""
    query = (
        insert(model)
        .values(
            id=new.id,
            organization_id=owner.organization_id,
            project_id=owner.project_id,
            name=new.name,
            ref=new.ref,
            source=dict(new.source),
            state="validating",
            files=[dict(one) for one in new.files],
        )
        .on_conflict_do_nothing()
        .returning(model)
    )
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Models of a project."""
    query = select(model).where(model.c.project_id == project_id, model.c.deleted_at.is_(None))
    return await fetch_page(connection, query, model.c.id, request)


async def find(
    connection: AsyncConnection, project_id: str, named: str, *, lock: bool = False
) -> Row[Any] | None:
    """A model by id, name or reference."""
    is_named = or_(model.c.id == named, model.c.name == named, model.c.ref == named)
    query = select(model).where(
        model.c.project_id == project_id, model.c.deleted_at.is_(None), is_named
    )
    query = query.order_by(model.c.id).limit(1)
    return (await connection.execute(query.with_for_update() if lock else query)).first()


async def find_base(connection: AsyncConnection, project_id: str, ref: str) -> Row[Any] | None:
    """The model of a reference, kept from deletion until the transaction ends."""
    query = select(model).where(
        model.c.project_id == project_id, model.c.deleted_at.is_(None), model.c.ref == ref
    )
    return (await connection.execute(query.with_for_update(read=True))).first()


async def refs(connection: AsyncConnection, project_id: str) -> list[str]:
    """Names and references of a project, the newest first, for near-name hints."""
    query = (
        select(model.c.name, model.c.ref)
        .where(model.c.project_id == project_id, model.c.deleted_at.is_(None))
        .order_by(model.c.id.desc())
        .limit(NAMES_MAX)
    )
    return [part for row in await connection.execute(query) for part in row]


async def job_using(connection: AsyncConnection, project_id: str, ref: str) -> str | None:
    """A job that has not ended and starts from this model."""
    query = select(t.job.c.id).where(
        t.job.c.project_id == project_id,
        t.job.c.ended_at.is_(None),
        t.job.c.spec["model"]["base"].astext == ref,
    )
    found: str | None = (await connection.execute(query.limit(1))).scalar_one_or_none()
    return found


async def delete(connection: AsyncConnection, project_id: str, model_id: str) -> None:
    """Delete a model; its name is free again."""
    await connection.execute(
        update(model)
        .where(model.c.project_id == project_id, model.c.id == model_id)
        .values(deleted_at=func.now())
    )
