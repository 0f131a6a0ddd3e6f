"""List parameters and pages, the same on every list."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query

from stores.paging import LIMIT_MAX, PageOfRows, PageRequest
from venusrl.models.common import Page

T = TypeVar("T")


def page_request(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 50,
    after: Annotated[str | None, Query(max_length=100)] = None,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "asc",
) -> PageRequest:
    """Dependency: the wanted page."""
    return PageRequest(limit, after, order == "desc")


Wanted = Annotated[PageRequest, Depends(page_request)]


def to_page(found: PageOfRows, convert: Callable[[Any], T]) -> Page[T]:
    """Wire page of rows whose cursor is their id."""
    last = found.rows[-1].id if found.rows and found.has_more else None
    return Page[T](data=[convert(row) for row in found.rows], has_more=found.has_more, next=last)
