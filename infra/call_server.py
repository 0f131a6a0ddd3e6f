"""A port at which each connection proves itself once, then makes calls that may overlap.

Each call is a task of its own, so a slow one delays nobody else. A connection that ends cancels only the
waiting of its calls: what they began goes on, and is found by whoever asks again.
"""

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from infra.frames import Channel, ConnectionEnded

Call = TypeVar("Call")


class CallServer(ABC, Generic[Call]):
    """Listens on the loopback interface. What it serves, and to whom, is its heir's."""

    def __init__(self, kinds: tuple[type[Call], ...], calls_max: int, caller: str) -> None:
        """`kinds` are the frames that are calls; a connection has at most `calls_max` open ones.

        `caller` names the other side, for what is said of a connection that broke the rules.
        """
        self._kinds = kinds
        self._calls_max = calls_max
        self._caller = caller
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Channel] = {}

    @abstractmethod
    async def admit(self, channel: Channel) -> bool:
        """Whether the other side has proven itself; raises TimeoutError where it takes too long."""

    @abstractmethod
    async def answer(self, call: Call) -> object:
        """The answer to a call, a refusal included."""

    def note(self, frame: object) -> bool:
        """Take a frame that nobody answers; False where it is none."""
        del frame
        return False

    def hung_up(self, cause: str) -> None:
        """A connection ended; by default that says nothing."""

    async def open(self) -> str:
        """Bind a free port; returns host:port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening and hang up."""
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._connections)
        await asyncio.gather(*(channel.close() for channel in self._connections.values()))
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        channel = self._connections[task] = Channel(reader, writer)
        try:
            if await self.admit(channel):
                await self._serve(channel)
        except (ConnectionEnded, TimeoutError) as ended:
            self.hung_up(str(ended))
        finally:
            await channel.close()
            del self._connections[task]

    async def _serve(self, channel: Channel) -> None:
        calls: set[asyncio.Task[None]] = set()
        try:
            while True:
                frame = await channel.receive()
                if self.note(frame):
                    continue
                if not isinstance(frame, self._kinds) or len(calls) >= self._calls_max:
                    raise ConnectionEnded(f"{self._caller} sent {type(frame).__name__}")
                task = asyncio.create_task(self._answer(channel, frame))
                calls.add(task)
                task.add_done_callback(calls.discard)
        finally:
            for call in tuple(calls):
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _answer(self, channel: Channel, call: Call) -> None:
        answer = await self.answer(call)
        try:
            channel.send(answer)
        except ConnectionEnded:
            return  # whoever asked asks again on another connection
