"""The port at which rollout hosts reach held tries: one proof, then requests that may overlap.

Each turn and seal is a task of its own, so a slow tool delays nobody else. A connection that ends
cancels only the waiting of its requests: replies go on and are found by whoever attaches next.
"""

import asyncio
from typing import Final

from domain.wire import AgentHello, AgentRefused, Attach, Seal, TakeTurn
from infra.frames import Channel, ConnectionEnded
from infra.logging import get_logger
from infra.pool_frames import InGeneration
from infra.proofs import proof, same
from workers.fleet.turns import TurnRefused, TurnServer

HELLO_TIMEOUT_S: Final = 5.0
"""A rollout host proves itself with its first frame."""

REQUESTS_MAX: Final = 4096
"""Open requests of one connection; a host has far fewer rollouts."""


class DataServer:
    """Listens on the loopback interface for rollout hosts that hold the data key."""

    def __init__(self, turns: TurnServer, key: str) -> None:
        self._turns = turns
        self._key = key
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], Channel] = {}

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
            if await self._admit(channel):
                await self._serve(channel)
        except (ConnectionEnded, TimeoutError) as ended:
            get_logger().info("data.disconnected", cause=str(ended))
        finally:
            await channel.close()
            del self._connections[task]

    async def _admit(self, channel: Channel) -> bool:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            hello = await channel.receive()
        if isinstance(hello, AgentHello):
            expected = proof(self._key.encode(), hello.nonce, hello.host_id, hello.epoch)
            if same(hello.proof, expected):
                return True
        channel.send(AgentRefused(0, "proof", "the data key was not proven"))
        return False

    async def _serve(self, channel: Channel) -> None:
        requests: set[asyncio.Task[None]] = set()
        try:
            while True:
                frame = await channel.receive()
                if isinstance(frame, InGeneration):
                    self._turns.note(frame)
                    continue
                if not isinstance(frame, (Attach, TakeTurn, Seal)) or len(requests) > REQUESTS_MAX:
                    raise ConnectionEnded(f"a rollout host sent {type(frame).__name__}")
                task = asyncio.create_task(self._answer(channel, frame))
                requests.add(task)
                task.add_done_callback(requests.discard)
        finally:
            for request in tuple(requests):
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)

    async def _answer(self, channel: Channel, frame: Attach | TakeTurn | Seal) -> None:
        try:
            match frame:
                case Attach():
                    answer: object = self._turns.attach(frame)
                case TakeTurn():
                    answer = await self._turns.take_turn(frame)
                case Seal():
                    answer = await self._turns.seal(frame)
        except TurnRefused as refused:
            answer = AgentRefused(frame.request, refused.reason, refused.cause)
        try:
            channel.send(answer)
        except ConnectionEnded:
            return  # The host asks again on its next connection.
