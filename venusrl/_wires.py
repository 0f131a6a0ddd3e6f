"""The two ways to do I/O, each as thin as it can be; everything that decides is in `_transport`."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import httpx

P = ParamSpec("P")
R = TypeVar("R")

Sleep = Callable[[float], Awaitable[None] | None]
"""A blocking sleep or an asynchronous one."""

CHUNK_BYTES: Final = 1 << 18
"""Of a file that is sent: large enough to cost little, small enough to hold a few."""


class Wire(Protocol):
    """What the client needs of the outside."""

    def build(self, *args: Any, **options: Any) -> httpx.Request:
        """A request as httpx makes it."""

    async def send(self, request: httpx.Request, is_stream: bool = False) -> httpx.Response:
        """One try."""

    def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """Lines of a streamed answer."""

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Bytes of a streamed answer."""

    async def read(self, response: httpx.Response) -> None:
        """The rest of a streamed answer."""

    async def end(self, response: httpx.Response) -> None:
        """Give up a streamed answer."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def aside(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run what takes long on this machine."""

    def body(self, pieces: Sequence[bytes | Path]) -> Any:
        """Bytes and files as the content of a request."""

    async def close(self) -> None:
        """Close all connections."""


class BlockingWire:
    """I/O that blocks: no coroutine of this class ever suspends."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def build(self, *args: Any, **options: Any) -> httpx.Request:
        """A request as httpx makes it."""
        return self._http.build_request(*args, **options)

    async def send(self, request: httpx.Request, is_stream: bool = False) -> httpx.Response:
        """One try."""
        return self._http.send(request, stream=is_stream)

    async def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """Lines of a streamed answer."""
        for line in response.iter_lines():
            yield line

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Bytes of a streamed answer."""
        for chunk in response.iter_bytes():
            yield chunk

    async def read(self, response: httpx.Response) -> None:
        """The rest of a streamed answer."""
        response.read()

    async def end(self, response: httpx.Response) -> None:
        """Give up a streamed answer."""
        response.close()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        _block(seconds)

    async def aside(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it here."""
        return act(*args, **kwargs)

    def body(self, pieces: Sequence[bytes | Path]) -> Any:
        """All pieces in chunks."""
        return _chunks_of(pieces)

    async def close(self) -> None:
        """Close all connections."""
        self._http.close()


class AsyncWire:
    """I/O on the running event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def build(self, *args: Any, **options: Any) -> httpx.Request:
        """A request as httpx makes it."""
        return self._http.build_request(*args, **options)

    async def send(self, request: httpx.Request, is_stream: bool = False) -> httpx.Response:
        """One try."""
        return await self._http.send(request, stream=is_stream)

    def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        """Lines of a streamed answer."""
        return response.aiter_lines()

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Bytes of a streamed answer."""
        return response.aiter_bytes()

    async def read(self, response: httpx.Response) -> None:
        """The rest of a streamed answer."""
        await response.aread()

    async def end(self, response: httpx.Response) -> None:
        """Give up a streamed answer."""
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def aside(self, act: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on a thread."""
        return await asyncio.to_thread(act, *args, **kwargs)

    def body(self, pieces: Sequence[bytes | Path]) -> Any:
        """All pieces in chunks, read on a thread."""
        return _chunks_aside(pieces)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def _block(seconds: float) -> None:
    time.sleep(seconds)


def _chunks_of(pieces: Sequence[bytes | Path]) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        with piece.open("rb") as content:
            while chunk := content.read(CHUNK_BYTES):
                yield chunk


async def _chunks_aside(pieces: Sequence[bytes | Path]) -> AsyncIterator[bytes]:
    chunks = _chunks_of(pieces)
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk
