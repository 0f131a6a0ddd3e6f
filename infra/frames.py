"""Length-prefixed frames over an asyncio stream, with one writer task and a bounded send queue.

A connection that breaks or lags beyond its bound ends; the host side dials again and sends a new
snapshot, so that there is no numbering, no dedupe and no trimming to get wrong.
"""

import asyncio
import contextlib
import struct
from typing import Final

from infra.codec import FRAME_BYTES_MAX, FrameRefused, decode, encode

SEND_QUEUE_MAX: Final = 10_000
"""A peer that does not read this many frames is as good as dead; the connection is closed."""

_HEADER: Final = struct.Struct(">I")


class ConnectionEnded(ConnectionError):
    """The peer closed, broke the framing or stopped reading."""


class Channel:
    """One framed connection. `send` never waits; `receive` raises ConnectionEnded at the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(SEND_QUEUE_MAX)
        self._sender = asyncio.create_task(self._send_loop())
        self.closed = asyncio.Event()

    def send(self, record: object) -> None:
        """Queue one record. Raises ConnectionEnded when the connection is over or its queue full."""
        if self.closed.is_set():
            raise ConnectionEnded("the connection is closed")
        data = encode(record)
        try:
            self._queue.put_nowait(_HEADER.pack(len(data)) + data)
        except asyncio.QueueFull:
            self._shut()
            raise ConnectionEnded("the peer does not read") from None

    async def receive(self) -> object:
        """The next record."""
        try:
            (size,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            if size > FRAME_BYTES_MAX:
                raise FrameRefused(f"frame of {size} bytes")
            return decode(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError, FrameRefused) as error:
            self._shut()
            raise ConnectionEnded(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Flush what is queued within a second, then close."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)
        await asyncio.wait({self._sender}, timeout=1.0)
        self._shut()
        await asyncio.gather(self._sender, return_exceptions=True)

    def _shut(self) -> None:
        self.closed.set()
        self._sender.cancel()
        self._writer.close()

    async def _send_loop(self) -> None:
        while (data := await self._queue.get()) is not None:
            try:
                self._writer.write(data)
                if self._queue.empty():
                    await self._writer.drain()
            except OSError:
                self._shut()
                return


async def connect(address: str, timeout_s: float) -> Channel:
    """Dial `host:port`. Raises ConnectionEnded."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, int(port))
    except (OSError, TimeoutError) as error:
        raise ConnectionEnded(f"cannot reach {address}: {error}") from error
    return Channel(reader, writer)
