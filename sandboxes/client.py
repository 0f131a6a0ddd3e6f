"""The gateway's side of a node's door: one call, on a proven connection of its own.

A connection costs a fraction of a millisecond on the network that nodes and gateways share, and a call
that its caller gives up ends with it. The node finishes what it began: asked again with its key, it
hands out the same answer.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from domain.errors import VenusError
from infra.door_frames import (
    DoorAnswer,
    DoorCall,
    DoorChallenge,
    DoorHello,
    DoorOpen,
    DoorReason,
    DoorRefused,
)
from infra.door_proofs import gateways_proof, nodes_proof
from infra.frames import Channel, ConnectionEnded, connect
from infra.proofs import fresh_nonce, same

DIAL_S: Final = 3.0
"""Connecting and both proofs; a node that needs longer is stopped or gone."""

ANSWERS: Final = DoorAnswer.__args__


class DoorClosed(VenusError):
    """The node cannot be reached, or does not answer in time; what it was asked may have been done."""

    code = "door_closed"


class CallRefused(VenusError):
    """The node answered that it does not do it."""

    code = "call_refused"

    def __init__(self, reason: DoorReason, detail: str) -> None:
        """Keep the closed reason beside the sentence for people."""
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """Whose door it is, where, and the key that both sides prove."""

    host_id: str
    epoch: int
    address: str
    key: bytes


async def call(door: DoorAddress, frame: DoorCall, timeout_s: float) -> DoorAnswer:
    """Ask one thing. Raises CallRefused, DoorClosed."""
    try:
        async with _proven(door) as channel, asyncio.timeout(timeout_s):
            channel.send(frame)
            answer = await channel.receive()
    except TimeoutError as error:
        raise DoorClosed(f"{door.host_id} does not answer") from error
    except ConnectionEnded as error:
        raise DoorClosed(f"{door.host_id}: {error}") from error
    if isinstance(answer, DoorRefused):
        raise CallRefused(answer.reason, answer.detail)
    if not isinstance(answer, ANSWERS):
        raise DoorClosed(f"{door.host_id} answered with {type(answer).__name__}")
    found: DoorAnswer = answer
    return found


@asynccontextmanager
async def _proven(door: DoorAddress) -> AsyncIterator[Channel]:
    channel = await connect(door.address, DIAL_S)
    try:
        async with asyncio.timeout(DIAL_S):
            await _prove(door, channel)
        yield channel
    finally:
        await channel.close()


async def _prove(door: DoorAddress, channel: Channel) -> None:
    challenge = await channel.receive()
    if not isinstance(challenge, DoorChallenge):
        raise ConnectionEnded("no door of a node")
    ours, theirs = fresh_nonce(), challenge.nonce
    channel.send(DoorHello(ours, gateways_proof(door.key, theirs, ours, door.host_id, door.epoch)))
    opened = await channel.receive()
    expected = nodes_proof(door.key, ours, theirs, door.host_id, door.epoch)
    if not isinstance(opened, DoorOpen) or not same(opened.proof, expected):
        raise ConnectionEnded("it could not prove that it is this node's door")
