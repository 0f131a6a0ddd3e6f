"""The node's door: one proof of both sides, then calls of the gateway that may overlap.

A connection that ends cancels only the waiting of its calls: a command goes on, and whoever asks with
its key gets its answer.
"""

import asyncio
from typing import Final, Protocol

from infra.door_frames import (
    DoorAnswer,
    DoorCall,
    DoorChallenge,
    DoorHello,
    DoorOpen,
    DoorRefused,
)
from infra.door_proofs import gateways_proof, nodes_proof
from infra.frames import Channel, ConnectionEnded
from infra.logging import get_logger
from infra.proofs import fresh_nonce, same
from sandboxes.client import CallRefused
from stores.unit_of_work import HostFence

HELLO_S: Final = 5.0
"""Whoever calls proves itself with its first frame."""

CALLS_MAX: Final = 256
"""Open calls of one connection."""

CALLS: Final = DoorCall.__args__


class Calls(Protocol):
    """What stands behind the door."""

    async def answer(self, call: DoorCall, /) -> DoorAnswer:
        """One call. Raises CallRefused."""
        ...


class Door:
    """Listens on the loopback interface, as the node's other ports do."""

    def __init__(self, calls: Calls, fence: HostFence, key: bytes) -> None:
        self._calls = calls
        self._fence = fence
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
        except (ConnectionEnded, TimeoutError):
            pass  # one call, one connection: its end says nothing
        finally:
            await channel.close()
            del self._connections[task]

    async def _admit(self, channel: Channel) -> bool:
        ours, fence = fresh_nonce(), self._fence
        channel.send(DoorChallenge(ours))
        async with asyncio.timeout(HELLO_S):
            hello = await channel.receive()
        if not isinstance(hello, DoorHello):
            return False
        if not same(
            hello.proof, gateways_proof(self._key, ours, hello.nonce, fence.host_id, fence.epoch)
        ):
            get_logger().warning("door.not_proven")
            return False
        proof = nodes_proof(self._key, hello.nonce, ours, fence.host_id, fence.epoch)
        channel.send(DoorOpen(proof))
        return True

    async def _serve(self, channel: Channel) -> None:
        open_calls: set[asyncio.Task[None]] = set()
        try:
            while True:
                frame = await channel.receive()
                if not isinstance(frame, CALLS) or len(open_calls) >= CALLS_MAX:
                    raise ConnectionEnded(f"a gateway sent {type(frame).__name__}")
                task = asyncio.create_task(self._answer(channel, frame))
                open_calls.add(task)
                task.add_done_callback(open_calls.discard)
        finally:
            for call in tuple(open_calls):
                call.cancel()
            await asyncio.gather(*open_calls, return_exceptions=True)

    async def _answer(self, channel: Channel, call: DoorCall) -> None:
        try:
            answer: object = await self._calls.answer(call)
        except CallRefused as refused:
            answer = DoorRefused(call.request, refused.reason, refused.detail)
        try:
            channel.send(answer)
        except ConnectionEnded:
            return  # whoever asked asks again, with the same key
