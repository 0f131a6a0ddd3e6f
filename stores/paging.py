"""Cursor pages over sortable ids: `after` is the last id of the page before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Select
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

LIMIT_MAX: Final = 200
"""Rows of one page: bounds the answer and the query."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """How much of a list is wanted; `descending` lists the newest first."""

    limit: int = 50
    after: str | None = None
    descending: bool = False


@dataclass(frozen=True, slots=True)
class PageOfRows:
    """Rows of one page and whether more follow."""

    rows: Sequence[Row[Any]]
    has_more: bool


def limit_of(page: PageRequest) -> int:
    """Rows of the page, within the bounds of a page."""
    return max(1, min(page.limit, LIMIT_MAX))


def beyond(id_column: ColumnElement[Any], page: PageRequest) -> ColumnElement[bool]:
    """What comes after the page's cursor in its order."""
    return id_column < page.after if page.descending else id_column > page.after


async def fetch_page(
    connection: AsyncConnection,
    query: Select[Any],
    id_column: ColumnElement[Any],
    page: PageRequest,
) -> PageOfRows:
    """Run the query for one page, ordered by its id column."""
    limit = limit_of(page)
    if page.after is not None:
        query = query.where(beyond(id_column, page))
    order = id_column.desc() if page.descending else id_column
    rows = (await connection.execute(query.order_by(order).limit(limit + 1))).all()
    return PageOfRows(rows[:limit], len(rows) > limit)
