"""The port at which rollout hosts reach held tries: one proof, then requests (`infra.call_server`).

Replies go on when a connection ends and are found by whoever attaches next.
"""

import asyncio
from typing import Final

from domain.wire import AgentHello, AgentRefused, Attach, Seal, TakeTurn
from infra.call_server import CallServer
from infra.frames import Channel
from infra.logging import get_logger
from infra.pool_frames import InGeneration
from infra.proofs import proof, same
from workers.fleet.turns import TurnRefused, TurnServer

HELLO_TIMEOUT_S: Final = 5.0
"""A rollout host proves itself with its first frame."""

REQUESTS_MAX: Final = 4096
"""Open requests of one connection; a host has far fewer rollouts."""


class DataServer(CallServer[Attach | TakeTurn | Seal]):
    """Listens on the loopback interface for rollout hosts that hold the data key."""

    def __init__(self, turns: TurnServer, key: str) -> None:
        super().__init__((Attach, TakeTurn, Seal), REQUESTS_MAX, "a rollout host")
        self._turns = turns
        self._key = key

    async def admit(self, channel: Channel) -> bool:
        """A rollout host shows that it knows the data key."""
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            hello = await channel.receive()
        if isinstance(hello, AgentHello):
            expected = proof(self._key.encode(), hello.nonce, hello.host_id, hello.epoch)
            if same(hello.proof, expected):
                return True
        channel.send(AgentRefused(0, "proof", "the data key was not proven"))
        return False

    def note(self, frame: object) -> bool:
        """A hint of who generates."""
        if not isinstance(frame, InGeneration):
            return False
        self._turns.note(frame)
        return True

    def hung_up(self, cause: str) -> None:
        """It dials again by itself."""
        get_logger().info("data.disconnected", cause=cause)

    async def answer(self, call: Attach | TakeTurn | Seal) -> object:
        """A refusal says why, and the host acts on it."""
        try:
            match call:
                case Attach():
                    return self._turns.attach(call)
                case TakeTurn():
                    return await self._turns.take_turn(call)
                case Seal():
                    return await self._turns.seal(call)
        except TurnRefused as refused:
            return AgentRefused(call.request, refused.reason, refused.cause)
