"""Both neighbours of an engine host's process: a leading scheduler's registry, and a node agent.

The leader's side is the real registry over the real `leadership` row; the agent's side serves the
in-memory journals of the unit tests over real frames.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domain.errors import VenusError
from domain.events import HostJoined
from domain.ids import HostId, RolloutId
from domain.policy import PolicyRef
from domain.wire import (
    AgentHello,
    AgentRefused,
    Attach,
    JournalTurn,
    Seal,
    Sync,
    TakeTurn,
    TurnReply,
)
from infra.codec import to_json
from infra.frames import Channel, ConnectionEnded
from infra.names import probe_path, weights_path
from infra.pool_frames import InGeneration
from infra.proofs import proof, same
from scheduler.hosts import Connected, Hosts
from stores.system import leases
from stores.system.leadership import Leadership
from tests.integration.workers.rollout.world import ENGINE, JOB, World
from tests.support import eventually
from tests.unit.workers.rollout.builders import ATTEMPT, AgentTwin, reply, tool, user
from workers.models.decoder import Decoder
from workers.models.folder import builtin_path, load_decoder, read_folder, save_weights, weights_sha
from workers.rollout.agent_client import AgentRefusal
from workers.trainer.probe import make_probe

DATA_KEY = "data-key"


def adding(turn: TakeTurn) -> JournalTurn:
    """The calc environment's reply, without a sandbox."""
    calls = turn.assistant.get("tool_calls", ())
    assert isinstance(calls, (list, tuple))
    messages = [tool(_sum(str(call["arguments"])), str(call["id"])) for call in calls]
    return reply(turn.turn, *messages, done=not calls)


def _sum(arguments: str) -> str:
    left, _, right = str(json.loads(arguments)["expression"]).partition("+")
    return f"{int(left) + int(right):02d}" if left.isdigit() and right.isdigit() else ""


@dataclass
class AgentServer:
    """A node agent process in miniature: one journal a rollout's try."""

    journals: dict[tuple[RolloutId, int], AgentTwin] = field(default_factory=dict)
    address: str = ""

    def journal(self, rollout: RolloutId, try_: int = 1) -> AgentTwin:
        """The journal of a try, with an opening of its own."""
        opening = (user("12+07+30"),)
        return self.journals.setdefault((rollout, try_), AgentTwin(adding, opening))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One rollout host."""
        channel = Channel(reader, writer)
        tasks: set[asyncio.Task[None]] = set()
        try:
            hello = await channel.receive()
            assert isinstance(hello, AgentHello)
            expected = proof(DATA_KEY.encode(), hello.nonce, hello.host_id, hello.epoch)
            assert same(hello.proof, expected)
            while True:
                tasks.add(asyncio.create_task(self._answer(channel, await channel.receive())))
        except ConnectionEnded:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channel.close()

    async def _answer(self, channel: Channel, request: object) -> None:
        if isinstance(request, InGeneration):
            self.journal(request.rollout_id, request.try_).hint(request)
            return
        assert isinstance(request, (Attach, TakeTurn, Seal))
        twin = self.journal(request.rollout_id, request.try_)
        try:
            match request:
                case Attach():
                    attached = await twin.attach(request.rollout_id, request.try_, request.hop)
                    channel.send(_numbered(attached, request.request))
                case TakeTurn():
                    channel.send(TurnReply(request.request, await twin.take_turn(request)))
                case Seal():
                    sealed = await twin.seal(request.rollout_id, request.try_, request.hop)
                    channel.send(_numbered(sealed, request.request))
        except AgentRefusal as refusal:
            channel.send(AgentRefused(request.request, refusal.reason, refusal.cause))


def _numbered(record: Any, number: int) -> object:
    return type(record)(**{**{n: getattr(record, n) for n in record.__slots__}, "request": number})


@dataclass
class Leader:
    """A scheduler's registry that records what hosts tell it."""

    world: World
    agent: AgentServer
    joined: list[HostJoined] = field(default_factory=list)
    told: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The registry asks Postgres for host keys, as the real leader does."""
        self.hosts = Hosts(self._key_of, self.joined.append, self._on_frame)
        self.epoch = 1

    async def _key_of(self, host: HostId, epoch: int) -> bytes | None:
        async with self.world.database.begin() as connection:
            return await leases.key_of(connection, host, epoch)

    def _on_frame(self, peer: Connected, frame: object) -> None:
        del peer
        self.told.append(frame)

    def heard(self, kind: type[Any]) -> list[Any]:
        """Facts of one kind."""
        return [fact for fact in self.told if isinstance(fact, kind)]

    def send(self, frame: object) -> None:
        """Send to the engine host that is connected."""
        assert self.hosts.send(ENGINE, self.epoch, frame)

    async def sync(self, policy: PolicyRef) -> None:
        """Order a policy."""
        self.send(Sync(policy))

    async def place(self, rollout: RolloutId, hop: int = 1) -> None:
        """Raise the hop and place, as the executor does."""
        self.send(
            await self.world.placed(
                rollout, hop, node_address=self.agent.address, node_key=DATA_KEY
            )
        )


@asynccontextmanager
async def neighbours(world: World) -> AsyncIterator[Leader]:
    """A leader and a node agent on free ports."""
    agent = AgentServer()
    listener = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    agent.address = f"{host}:{port}"
    leader = Leader(world, agent)
    leadership = Leadership(world.database.url, 60.0)
    address = await leader.hosts.open()
    term = await leadership.try_acquire(address)
    assert term is not None
    leader.hosts.lead(term)
    beating = asyncio.create_task(leader.hosts.beat())
    try:
        yield leader
    finally:
        beating.cancel()
        with suppress(asyncio.CancelledError, VenusError):
            await beating
        await leader.hosts.close()
        listener.close()
        await leadership.close()


async def publish(world: World, version: int, model: Decoder, epoch: int = 1) -> PolicyRef:
    """Store weights and probe as the trainer does."""
    path = world.folder / f"published-{version}-{epoch}.safetensors"
    save_weights(model.state_dict(), path)
    sha = weights_sha(model.state_dict())
    uri = weights_path(JOB, ATTEMPT, version, epoch)
    probe_uri = probe_path(JOB, ATTEMPT, version, epoch)
    await world.blobs.create(uri, path.read_bytes())
    await world.blobs.create(probe_uri, to_json(make_probe(model, version, sha)))
    return PolicyRef(ATTEMPT, version, sha, uri, probe_uri, epoch)


def warm_start(nudge: float = 0.0) -> Decoder:
    """The shipped model, its head moved a little."""
    model = load_decoder(read_folder(builtin_path("tiny-calc")))
    weight = model.state_dict()["lm_head.weight"]
    weight += nudge * weight.sign()
    return model


def workdir(world: World) -> Path:
    """`VENUS_HOME` of processes under test."""
    return world.folder / "home"


async def joined(leader: Leader, count: int) -> HostJoined:
    """The n-th snapshot."""
    await eventually(lambda: len(leader.joined) >= count, 60.0)
    return leader.joined[count - 1]
