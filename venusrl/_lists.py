"""Lists of the API as iterators that fetch the next page when it is needed."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from venusrl._transport import Request, Transport
from venusrl.models.common import Page

M = TypeVar("M", bound=BaseModel)

PAGE_LIMIT: Final = 200
"""The largest page that the API gives."""


def read(transport: Transport, request: Request, model: type[M]) -> M:
    """The answer of one request as a record."""
    return model.model_validate(transport.send(request).json())


def read_page(transport: Transport, request: Request, model: type[M]) -> Page[M]:
    """One page."""
    return Page[model].model_validate(transport.send(request).json())  # type: ignore[valid-type]


def iterate(
    transport: Transport, path: str, params: Mapping[str, Any], model: type[M]
) -> Iterator[M]:
    """All items from the first page on; `after` in `params` starts later."""
    wanted = {"limit": PAGE_LIMIT, **params}
    while True:
        page = read_page(transport, Request("GET", path, wanted), model)
        yield from page.data
        if not page.has_more or page.next is None:
            return
        wanted["after"] = page.next
