"""Frames over a pair of streams: the runner to its parent, a grading child to the runner.

One task reads; writers share a lock-free queue of the transport and wait for it to drain. Requests
that this side makes are numbered here and resolved by the other side's `result` frames.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import BinaryIO, Final

from venusrl.env.messages import Json
from venusrl.env.wire import BadRecord, FrameDecoder, Record, encode_frame, int_field

READ_BYTES: Final = 1 << 16
"""One pipe's worth; more would only wait in memory."""


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """A stream of frames both ways, with calls to the other side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._pending: dict[int, asyncio.Future[Record]] = {}
        self._next_id = 0
        self._thread = threading.get_ident()

    def try_send(self, frame: Record) -> bool:
        """Write one frame at once; False where that would overtake others or wait for the reader.

        So a line that user code prints is out of this process before its next statement runs.
        """
        transport = self._writer.transport
        if threading.get_ident() != self._thread or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > 0:
            return False
        self._writer.write(encode_frame(frame))
        return True

    async def send(self, frame: Record) -> None:
        """Write one frame and wait while the other side is slow."""
        self._writer.write(encode_frame(frame))
        await self._writer.drain()

    async def request(self, frame: Mapping[str, Json]) -> Record:
        """Send a frame under a new id and wait for its `result` frame."""
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            await self.send({**frame, "id": number})
            return await future
        finally:
            self._pending.pop(number, None)

    async def frames(self) -> AsyncIterator[Record]:
        """Frames of the other side until it closes; `result` frames are resolved on the way."""
        try:
            while chunk := await self._reader.read(READ_BYTES):
                for frame in self._requests(self._decoder.feed(chunk)):
                    yield frame
        except (ConnectionError, BadRecord) as error:
            raise ChannelClosed(str(error)) from error
        finally:
            self.fail_pending()

    def fail_pending(self) -> None:
        """End every waiting request: no result can come any more."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ChannelClosed("the other side is gone"))

    def close(self) -> None:
        """Stop writing."""
        self._writer.close()

    def _requests(self, frames: Iterable[Record]) -> Iterator[Record]:
        for frame in frames:
            if frame.get("t") == "result":
                self._resolve(frame)
            else:
                yield frame

    def _resolve(self, frame: Record) -> None:
        future = self._pending.get(int_field(frame, "id"))
        if future is not None and not future.done():
            future.set_result(frame)


async def open_pipes(incoming: BinaryIO, outgoing: BinaryIO) -> Channel:
    """A channel over two unbuffered pipe ends that this process owns."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, outgoing)
    return Channel(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
