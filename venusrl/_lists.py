"""Lists of the API as iterators that fetch the next page when it is needed."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel

from venusrl._transport import Request, Transport
from venusrl.models.common import Page

M = TypeVar("M", bound=BaseModel)

PAGE_LIMIT: Final = 200
"""The largest page that the API gives."""


async def read(transport: Transport, request: Request, model: type[M]) -> M:
    """The answer of one request as a record."""
    return model.model_validate((await transport.send(request)).json())


async def read_page(transport: Transport, request: Request, model: type[M]) -> Page[M]:
    """One page."""
    answer = (await transport.send(request)).json()
    return Page[model].model_validate(answer)  # type: ignore[valid-type]


async def iterate(
    transport: Transport, path: str, params: Mapping[str, Any], model: type[M]
) -> AsyncIterator[M]:
    """All items from the first page on; `after` in `params` starts later."""
    wanted = {"limit": PAGE_LIMIT, **params}
    while True:
        page = await read_page(transport, Request("GET", path, wanted), model)
        for item in page.data:
            yield item
        if not page.has_more or page.next is None:
            return
        wanted["after"] = page.next
