"""The only place where tests wait: poll a predicate until it holds or a deadline passes."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, overload

T = TypeVar("T")

POLL_S: Final = 0.02
"""Short against every interval of the product, long against the cost of a predicate."""


@overload
async def eventually(
    predicate: Callable[[], Awaitable[T]], deadline: float = 10.0, message: str = ""
) -> T: ...


@overload
async def eventually(
    predicate: Callable[[], T], deadline: float = 10.0, message: str = ""
) -> T: ...


async def eventually(
    predicate: Callable[[], T | Awaitable[T]], deadline: float = 10.0, message: str = ""
) -> T:
    """The first truthy value of `predicate` (plain or async); fails after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = predicate()
        result: T = await value if inspect.isawaitable(value) else value
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(message or f"not within {deadline} s, last value: {result!r}")
        await asyncio.sleep(POLL_S)


def wait_until(predicate: Callable[[], T], deadline: float = 10.0, message: str = "") -> T:
    """`eventually` for tests without an event loop."""
    end = time.monotonic() + deadline
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(message or f"not within {deadline} s, last value: {result!r}")
        time.sleep(POLL_S)


LOOK_S: Final = 0.2
"""A client that waits for a job looks again so soon; by itself it would let two seconds pass."""


def look_again(pause_s: float) -> None:
    """The pause of a client between two looks, cut short: `Waiting(sleep=look_again)`."""
    time.sleep(min(pause_s, LOOK_S))
