"""The blocking surface of the one implementation.

Every verb of the client is written once, as a coroutine over a `Wire`. On an `AsyncWire` it is what
`AsyncClient` offers. On a `BlockingWire` nothing in it ever suspends, so that running it to its end
is an ordinary call: that is what `Client` offers.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


class Surface(Generic[C]):
    """The blocking form of a noun; `_core` is its only state."""

    def __init__(self, core: C) -> None:
        self._core = core


def run_now(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: R = ended.value
        return result
    coroutine.close()
    raise AssertionError("a blocking call suspended")


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Surface[C], P], R]:
    """The blocking form of a coroutine method."""

    @wraps(method)
    def call(self: Surface[C], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_now(method(self._core, *args, **kwargs))

    return call


def each(
    method: Callable[Concatenate[C, P], AsyncIterator[R]],
) -> Callable[Concatenate[Surface[C], P], Iterator[R]]:
    """The blocking form of a method that gives an asynchronous iterator."""

    @wraps(method)
    def call(self: Surface[C], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return items(method(self._core, *args, **kwargs))

    return call


def items(source: AsyncIterator[R]) -> Iterator[R]:
    """The items of an asynchronous iterator that never suspends; closes it in any case."""
    try:
        while True:
            try:
                item = run_now(_next(source))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(source, AsyncGenerator):
            run_now(_close(source))


async def _next(source: AsyncIterator[R]) -> R:
    return await source.__anext__()


async def _close(source: AsyncGenerator[R]) -> None:
    await source.aclose()
