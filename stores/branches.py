"""Branches of a rollout: operations of their kind, which the project sees."""

from typing import Any

from sqlalchemy import Row, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.names import BRANCH_ROLLOUT
from stores import tables as t
from stores.paging import PageOfRows, PageRequest, fetch_page

operation = t.operation


def _branches(project_id: str, rollout_id: str) -> Select[Any]:
    return select(operation).where(
        operation.c.project_id == project_id,
        operation.c.kind == BRANCH_ROLLOUT,
        operation.c.request["rollout_id"].astext == rollout_id,
    )


async def page(
    connection: AsyncConnection, project_id: str, rollout_id: str, request: PageRequest
) -> PageOfRows:
    """Branches of a rollout, oldest first."""
    return await fetch_page(connection, _branches(project_id, rollout_id), operation.c.id, request)


async def find(
    connection: AsyncConnection, project_id: str, rollout_id: str, branch_id: str
) -> Row[Any] | None:
    """One branch of a rollout."""
    query = _branches(project_id, rollout_id).where(operation.c.id == branch_id)
    found: Row[Any] | None = (await connection.execute(query)).first()
    return found
