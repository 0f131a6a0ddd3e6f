"""The node's door: one proof of both sides, then calls of the gateway (`infra.call_server`).

A command goes on when its connection ends, and whoever asks with its key gets its answer.
"""

import asyncio
from typing import Final, Protocol

from infra.call_server import CallServer
from infra.door_frames import (
    DoorAnswer,
    DoorCall,
    DoorChallenge,
    DoorHello,
    DoorOpen,
    DoorRefused,
)
from infra.door_proofs import gateways_proof, nodes_proof
from infra.frames import Channel
from infra.logging import get_logger
from infra.proofs import fresh_nonce, same
from sandboxes.client import CallRefused
from stores.unit_of_work import HostFence

HELLO_S: Final = 5.0
"""Whoever calls proves itself with its first frame."""

CALLS_MAX: Final = 256
"""Open calls of one connection."""


class Calls(Protocol):
    """What stands behind the door."""

    async def answer(self, call: DoorCall, /) -> DoorAnswer:
        """One call. Raises CallRefused."""
        ...


class Door(CallServer[DoorCall]):
    """Listens on the loopback interface, as the node's other ports do."""

    def __init__(self, calls: Calls, fence: HostFence, key: bytes) -> None:
        super().__init__(DoorCall.__args__, CALLS_MAX, "a gateway")
        self._calls = calls
        self._fence = fence
        self._key = key

    async def admit(self, channel: Channel) -> bool:
        """Both sides know the key; the gateway shows it first."""
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

    async def answer(self, call: DoorCall) -> DoorAnswer | DoorRefused:
        """What stands behind the door says it."""
        try:
            return await self._calls.answer(call)
        except CallRefused as refused:
            return DoorRefused(call.request, refused.reason, refused.detail)
