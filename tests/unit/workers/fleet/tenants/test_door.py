"""The door: both sides prove its key, for this node and this epoch alone."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from domain.ids import HostId
from infra.door_frames import (
    DoorAnswer,
    DoorCall,
    DoorChallenge,
    DoorDone,
    DoorHello,
    DoorLook,
    DoorOpen,
    DoorReason,
)
from infra.frames import Channel, ConnectionEnded, connect
from sandboxes.client import CallRefused, DoorAddress, DoorClosed, call
from stores.unit_of_work import HostFence
from workers.fleet.tenants.door import Door

KEY = b"k" * 32
LOOK = DoorLook(3, "sbx")


class Calls:
    """Answers what it is told to."""

    def __init__(self) -> None:
        """Nothing was asked."""
        self.asked: list[DoorCall] = []
        self.refusal: CallRefused | None = None

    async def answer(self, frame: DoorCall) -> DoorAnswer:
        """One call."""
        self.asked.append(frame)
        if self.refusal is not None:
            raise self.refusal
        return DoorDone(frame.request)


@pytest.fixture
def calls() -> Calls:
    """What stands behind the door."""
    return Calls()


@pytest.fixture
async def address(calls: Calls) -> AsyncIterator[DoorAddress]:
    """An open door."""
    door = Door(calls, HostFence(HostId("host_node0"), 4), KEY)
    yield DoorAddress("host_node0", 4, await door.open(), KEY)
    await door.close()


async def test_a_call_is_answered(address: DoorAddress, calls: Calls) -> None:
    assert await call(address, LOOK, 5.0) == DoorDone(3)
    assert calls.asked == [LOOK]


async def test_a_refusal_keeps_its_reason(address: DoorAddress, calls: Calls) -> None:
    calls.refusal = CallRefused(DoorReason.PAUSED, "it is paused")
    with pytest.raises(CallRefused) as refused:
        await call(address, LOOK, 5.0)
    assert (refused.value.reason, refused.value.detail) == (DoorReason.PAUSED, "it is paused")


@pytest.mark.parametrize(
    "wrong", [{"key": b"x" * 32}, {"epoch": 5}, {"host_id": "host_node1"}], ids=str
)
async def test_nobody_is_let_in_who_means_another_door(
    address: DoorAddress, calls: Calls, wrong: dict[str, Any]
) -> None:
    with pytest.raises(DoorClosed):
        await call(replace(address, **wrong), LOOK, 5.0)
    assert calls.asked == []


async def test_what_was_heard_opens_no_door_again(address: DoorAddress, calls: Calls) -> None:
    heard: list[object] = []

    async def overhear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Between gateway and node, it keeps what the gateway says."""
        ours, theirs = Channel(reader, writer), await connect(address.address, 5.0)
        ours.send(await theirs.receive())
        heard.append(await ours.receive())
        theirs.send(heard[0])
        ours.send(await theirs.receive())
        await ours.close()
        await theirs.close()

    server = await asyncio.start_server(overhear, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    with pytest.raises(DoorClosed):
        await call(replace(address, address=f"{host}:{port}"), LOOK, 5.0)
    server.close()
    channel = await connect(address.address, 5.0)
    assert isinstance(await channel.receive(), DoorChallenge)
    assert isinstance(heard[0], DoorHello)
    channel.send(heard[0])
    with pytest.raises(ConnectionEnded):
        await channel.receive()
    await channel.close()
    assert calls.asked == []


async def test_a_gateway_says_nothing_to_who_cannot_prove_the_key() -> None:
    said: list[object] = []

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        channel.send(DoorChallenge(b"n" * 32))
        said.append(await channel.receive())
        channel.send(DoorOpen(b"p" * 32))
        try:
            said.append(await channel.receive())
        except ConnectionEnded:
            await channel.close()

    server = await asyncio.start_server(pretend, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    with pytest.raises(DoorClosed):
        await call(DoorAddress("host_node0", 4, f"{host}:{port}", KEY), LOOK, 5.0)
    server.close()
    assert [type(one) for one in said] == [DoorHello]


async def test_a_door_that_nobody_opens_is_closed() -> None:
    with pytest.raises(DoorClosed):
        await call(DoorAddress("host_node0", 4, "127.0.0.1:1", KEY), LOOK, 5.0)
