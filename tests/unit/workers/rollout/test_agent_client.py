"""The connection to a node agent: numbers, proof, reconnection, loss. Real frames on loopback."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from domain.ids import HostId
from domain.wire import (
    AgentHello,
    AgentRefused,
    Attach,
    Attached,
    JournalTurn,
    Seal,
    Sealed,
    TakeTurn,
    TurnReply,
)
from infra.clock import SystemClock
from infra.frames import Channel, ConnectionEnded
from infra.proofs import proof, same
from tests.support import eventually
from tests.unit.workers.rollout.builders import ROLLOUT, user
from workers.rollout import agent_client
from workers.rollout.agent_client import AgentClient, AgentLost, AgentPool, AgentRefusal

HOST = HostId("host_test_engine0")
KEY = "agent-key"

Handler = Callable[[object], object | None]


@dataclass
class Server:
    """A listener that answers by a handler; None: no answer. `cut` ends all connections."""

    handler: Handler
    hellos: list[AgentHello] = field(default_factory=list)
    received: list[object] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    serving: list["asyncio.Task[None]"] = field(default_factory=list)
    address: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        channel = Channel(reader, writer)
        self.channels.append(channel)
        task = asyncio.current_task()
        assert task is not None
        self.serving.append(task)
        try:
            hello = await channel.receive()
            assert isinstance(hello, AgentHello)
            self.hellos.append(hello)
            while True:
                request = await channel.receive()
                self.received.append(request)
                answer = self.handler(request)
                if answer is not None:
                    channel.send(answer)
        except ConnectionEnded:
            pass
        finally:
            await channel.close()

    async def cut(self) -> None:
        """Hang up on everybody."""
        for channel in self.channels:
            await channel.close()
        self.channels.clear()

    async def stop(self) -> None:
        """Hang up and wait until every connection is over."""
        await self.cut()
        await asyncio.gather(*self.serving)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    """A server on a free port."""
    server = Server(handler)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    server.address = f"{host}:{port}"
    try:
        yield server
    finally:
        listener.close()
        await server.stop()


def client(server: Server) -> AgentClient:
    return AgentClient(server.address, KEY, host_id=HOST, epoch=2, clock=SystemClock())


def answering(request: object) -> object | None:
    match request:
        case Attach():
            return Attached(request.request, (user("1"),), ())
        case TakeTurn():
            turn = JournalTurn(request.turn, (), (), (), "stop", True, (), True, 0.0)
            return TurnReply(request.request, turn)
        case Seal():
            return Sealed(request.request, {"a": "b"}, {})
        case _:
            return None


def intent(turn: int) -> TakeTurn:
    return TakeTurn(0, ROLLOUT, 1, 1, turn, (1,), (0.0,), (0,), "stop", {})


async def test_the_host_proves_itself_and_its_three_requests_are_answered() -> None:
    async with serving(answering) as server:
        one = client(server)
        assert (await one.attach(ROLLOUT, 1, 1)).opening == (user("1"),)
        assert (await one.take_turn(intent(4))).turn == 4
        assert (await one.seal(ROLLOUT, 1, 1)).artefacts == {"a": "b"}
        (hello,) = server.hellos
        assert (hello.host_id, hello.epoch) == (HOST, 2)
        assert same(hello.proof, proof(KEY.encode(), hello.nonce, HOST, 2))
        await one.close()


async def test_concurrent_requests_share_a_connection_and_meet_their_own_answers() -> None:
    held: list[TakeTurn] = []

    def reversed_order(request: object) -> object | None:
        assert isinstance(request, TakeTurn)
        held.append(request)
        if len(held) < 64:
            return None
        for one in reversed(held[:-1]):
            server.channels[0].send(answering(one))
        return answering(request)

    async with serving(reversed_order) as server:
        one = client(server)
        replies = await asyncio.gather(*(one.take_turn(intent(turn)) for turn in range(64)))
        assert [turn.turn for turn in replies] == list(range(64))
        assert len(server.hellos) == 1
        await one.close()


async def test_a_broken_connection_repeats_the_request_on_a_new_one() -> None:
    async with serving(lambda request: None) as server:
        one = client(server)
        asking = asyncio.create_task(one.take_turn(intent(1)))
        await eventually(lambda: server.received)
        server.handler = answering
        await server.cut()
        assert (await asking).turn == 1
        assert len(server.hellos) == 2
        first, second = server.received
        assert isinstance(first, TakeTurn)
        assert isinstance(second, TakeTurn)
        assert first.token_ids == second.token_ids
        await one.close()


async def test_a_refusal_is_typed_and_leaves_the_connection_alone() -> None:
    def refusing(request: object) -> object:
        assert isinstance(request, (Attach, Seal))
        if isinstance(request, Seal):
            return Sealed(request.request, {}, {})
        return AgentRefused(request.request, "hop", "3 is newer")

    async with serving(refusing) as server:
        one = client(server)
        with pytest.raises(AgentRefusal) as refused:
            await one.attach(ROLLOUT, 1, 1)
        assert (refused.value.reason, refused.value.cause) == ("hop", "3 is newer")
        await one.seal(ROLLOUT, 1, 1)
        assert len(server.hellos) == 1
        await one.close()


async def test_an_agent_that_is_gone_is_lost_after_a_bounded_number_of_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_client, "BACKOFF_S", 0.001)
    async with serving(answering) as server:
        one = client(server)
        await one.attach(ROLLOUT, 1, 1)
    with pytest.raises(AgentLost):
        await one.attach(ROLLOUT, 1, 2)
    await one.close()


async def test_a_silent_agent_is_lost_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "ATTACH_DEADLINE_S", 0.05)
    async with serving(lambda request: None) as server:
        one = client(server)
        with pytest.raises(AgentLost, match="silent"):
            await one.attach(ROLLOUT, 1, 1)
        await one.close()


async def test_an_agent_that_refuses_the_proof_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_client, "BACKOFF_S", 0.001)
    async with serving(lambda request: AgentRefused(0, "proof", "unknown key")) as server:
        one = client(server)
        with pytest.raises(AgentLost, match="unknown key"):
            await one.attach(ROLLOUT, 1, 1)
        await one.close()


async def test_forgetting_one_rollout_leaves_the_answers_of_the_others() -> None:
    async with serving(lambda request: None) as server:
        one = client(server)
        forgotten = asyncio.create_task(one.take_turn(intent(1)))
        kept = asyncio.create_task(one.take_turn(intent(2)))
        await eventually(lambda: len(server.received) == 2)
        forgotten.cancel()
        await asyncio.gather(forgotten, return_exceptions=True)
        for request in server.received:
            server.channels[0].send(answering(request))
        assert (await kept).turn == 2
        await one.close()


async def test_a_pool_has_one_client_for_each_agent_process() -> None:
    pool = AgentPool(HOST, 1, SystemClock())
    assert pool.client("127.0.0.1:1", "a") is pool.client("127.0.0.1:1", "a")
    assert pool.client("127.0.0.1:1", "a") is not pool.client("127.0.0.1:1", "b")
    await pool.close()
