"""Two engine hosts of one attempt, the leader's registry and executor, and a node with a slow tool.

Everything between them is real: links with proofs, the executor's transactions, pages over shared
memory or HTTP, closes in Postgres. The engines are scripted, and the tool answers when the test says.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from sqlalchemy import insert

from domain import commands as c
from domain.events import RolloutClosed, TurnFinished, TurnSampled
from domain.ids import HostId, JobId, OrganizationId, RolloutId, host_id, node_host_id
from domain.states import HostKind
from domain.trajectory import Trajectory
from domain.wire import HostSnapshot, JournalTurn, Place, Suspend, TakeTurn, TurnReports
from infra.clock import SystemClock
from infra.codec import from_msgpack
from infra.frames import Channel
from infra.link import LeaderLink
from infra.proofs import key_sha
from scheduler.context import JobContext
from scheduler.executor import Executor
from scheduler.hosts import Connected
from stores import tables as t
from stores.system.leadership import find_leader
from stores.unit_of_work import HostFence
from tests.integration.workers.rollout.leader import DATA_KEY, AgentServer, Leader, adding
from tests.integration.workers.rollout.world import ENGINE, JOB, KEY, World
from tests.support.waiting import eventually
from tests.unit.workers.rollout.builders import ATTEMPT, CHAT, VOCABULARY, AgentTwin, ids, user
from workers.rollout.agent_client import AgentPool
from workers.rollout.closing import Closer
from workers.rollout.host import HostIdentity, HostPorts, RolloutHost, SyncPlan
from workers.rollout.job_spec import EnvironmentSpec, JobSpec, ModelSpec
from workers.rollout.kv_transfer.door import KvDoor
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.scripted.engine import ScriptedEngine, ScriptedSizes
from workers.rollout.scripted.script import Script, ScriptedAnswer

OTHER: HostId = host_id(ATTEMPT, "engine1")
NODE = node_host_id(0)
ANSWERS = ("c12+07;", "c19+30;", "c49+01;", "a50;")
SPEC = JobSpec(ModelSpec("tiny-calc"), (EnvironmentSpec(6, 60.0),))


class ToolTwin(AgentTwin):
    """A node agent's journal whose replies run by themselves, once each, whoever waits for them."""

    def __init__(self) -> None:
        super().__init__(adding, (user("12+07+30"),))
        self.held: dict[int, asyncio.Event] = {}
        """Turns whose tool runs until the test lets it end."""
        self.replies: dict[int, asyncio.Task[None]] = {}
        self.attached: list[int] = []

    def hold(self, turn: int) -> None:
        """The tool of this turn will not end by itself."""
        self.held[turn] = asyncio.Event()

    async def attach(self, rollout_id: RolloutId, try_: int, hop: int) -> Any:
        """Note the hop."""
        attached = await super().attach(rollout_id, try_, hop)
        self.attached.append(hop)
        return attached

    async def take_turn(self, turn: TakeTurn) -> JournalTurn:
        """Journal the intent, run its reply beside every request, answer with the record."""
        self._check(turn.hop)
        if turn.turn == len(self.turns):
            self.turns.append(self._intent(turn))
            self.replies[turn.turn] = asyncio.create_task(self._reply(turn))
        assert self.turns[turn.turn].token_ids == turn.token_ids, "another intent for the turn"
        await asyncio.wait({self.replies[turn.turn]})
        return self.turns[turn.turn]

    async def _reply(self, turn: TakeTurn) -> None:
        if turn.turn in self.held:
            await self.held[turn.turn].wait()
        said = self.answer(turn)
        assert said is not None
        self.replies_run += 1
        self.turns[turn.turn] = replace(
            self.turns[turn.turn],
            replied=True,
            messages=said.messages,
            done=said.done,
            tool_s=said.tool_s,
        )


class ToolNode(AgentServer):
    """A node agent whose journals are `ToolTwin`."""

    def journal(self, rollout: RolloutId, try_: int = 1) -> ToolTwin:
        """The journal of a try."""
        twin = self.journals.setdefault((rollout, try_), ToolTwin())
        assert isinstance(twin, ToolTwin)
        return twin


@dataclass
class OneHost:
    """An engine host in this process."""

    engine: ScriptedEngine
    transfer: KvTransfer
    door: KvDoor
    host: RolloutHost
    link: LeaderLink
    agents: AgentPool
    wall: list[float]
    """Seconds by which its clock for tickets is ahead."""
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def start(self) -> None:
        """Dial the leader, open the door."""
        self.tasks = [asyncio.create_task(one) for one in (self.link.run(), self.door.run())]

    async def die(self) -> None:
        """Vanish: nothing is said to anybody; may be called twice."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.host.close()
        await self.agents.close()
        await self.engine.close()
        await self.door.close()


@dataclass
class TwoHosts:
    """The world of one rollout that moves."""

    world: World
    leader: Leader
    node: ToolNode
    executor: Executor
    hosts: dict[HostId, OneHost]
    lost: list[tuple[HostId, type[Any]]] = field(default_factory=list)
    """Frames that never arrive, by receiver and kind."""
    kept: list[tuple[HostId, object]] = field(default_factory=list)
    """Every frame that was sent, for sending it again."""
    hop: int = 0
    at: HostId = ENGINE

    @property
    def a(self) -> OneHost:
        """Where the rollout starts."""
        return self.hosts[ENGINE]

    @property
    def b(self) -> OneHost:
        """Where it goes."""
        return self.hosts[OTHER]

    async def place(self, rollout: RolloutId, host: HostId, kv_from: HostId | None = None) -> None:
        """As the core places: with the next hop."""
        self.hop += 1
        self.at = host
        await self.execute(c.PlaceRollout(rollout, 1, self.hop, host, 1, NODE, 1, 3, kv_from))

    async def move(self, rollout: RolloutId, target: HostId) -> None:
        """As the core moves: both commands in one batch."""
        source, self.hop, self.at = self.at, self.hop + 1, target
        await self.execute(
            c.SuspendRollout(rollout, 1, self.hop - 1, source, 1, keep_kv=True),
            c.PlaceRollout(rollout, 1, self.hop, target, 1, NODE, 1, 3, source),
        )

    async def execute(self, *commands: c.Command) -> None:
        """Run commands through the leader's executor."""
        self.executor.enqueue(commands)
        while self.executor.pending:
            await self.executor.run_batch()

    def again(self, kind: type[Any]) -> None:
        """Send every frame of a kind once more."""
        for host, frame in list(self.kept):
            if isinstance(frame, kind):
                self.leader.hosts.send(host, 1, frame)

    def heard(self, kind: type[Any]) -> list[Any]:
        """Turn events that the leader was told of."""
        frames = self.leader.heard(TurnReports)
        return [one for f in frames for one in (*f.finished, *f.sampled) if isinstance(one, kind)]

    async def joined(self) -> None:
        """Both hosts have told what they hold."""
        connected = self.leader.hosts.connected
        await eventually(lambda: {ENGINE, OTHER} <= set(connected), 60.0)

    async def in_gap(self, turn: int) -> None:
        """Wait until the leader knows that the tool of this turn (from 0) runs."""
        await eventually(lambda: turn + 1 in [one.turn for one in self.heard(TurnSampled)])

    async def closed(self) -> RolloutClosed:
        """The one end."""
        (found,) = await eventually(lambda: self.leader.heard(RolloutClosed) or self.faults())
        assert isinstance(found, RolloutClosed)
        return found

    def faults(self) -> list[object]:
        """What ended a host by itself."""
        return [one.host.fault.exception() for one in self.hosts.values() if one.host.fault.done()]

    async def trajectory(self, rollout: RolloutId) -> Trajectory:
        """What was stored."""
        row = await self.world.row(t.rollout, rollout)
        return from_msgpack(
            await self.world.blobs.read(row.trajectory_uri, row.trajectory_sha), Trajectory
        )

    def finished_turns(self) -> list[tuple[int, int]]:
        """(turn, hop) of the finished turns that the leader heard of."""
        return [(one.turn, one.hop) for one in self.heard(TurnFinished)]


@asynccontextmanager
async def no_hosts(world: World, leader: Leader) -> AsyncIterator[TwoHosts]:
    """Leases of two hosts, a node, and the leader's executor; the hosts are the test's matter."""
    node = ToolNode()
    listener = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    node.address = f"{host}:{port}"
    _connect_node(leader, node)
    lease = {"id": OTHER, "kind": "engine", "desired": "up", "epoch": 1, "owner": "me"}
    async with world.database.begin() as connection:
        await connection.execute(insert(t.host_lease).values(key_sha=key_sha(KEY), **lease))
    term = leader.hosts._term
    assert term is not None
    executor = Executor(
        world.database,
        leader.hosts,
        term.number,
        {JobId(JOB): _context()},
        feed=leader.told.append,
        data_position=lambda attempt: (0, ()),
    )
    one = TwoHosts(world, leader, node, executor, {})
    _tap(one)
    try:
        yield one
    finally:
        listener.close()


@asynccontextmanager
async def two_hosts(
    world: World, leader: Leader, here: str | None = None
) -> AsyncIterator[TwoHosts]:
    """Both hosts in this process, joined; `here` is what the second one calls its machine."""
    async with no_hosts(world, leader) as one:
        one.hosts |= {ENGINE: _host(world, ENGINE, None), OTHER: _host(world, OTHER, here)}
        try:
            for each in one.hosts.values():
                each.start()
            await one.joined()
            yield one
        finally:
            for each in one.hosts.values():
                await each.die()


def _host(world: World, name: HostId, here: str | None) -> OneHost:
    clock, ahead = SystemClock(), [0.0]
    transfer = KvTransfer(lambda: time.time() + ahead[0])
    script = Script(default=tuple(ScriptedAnswer(ids(a)) for a in ANSWERS), by_turn=True)
    sizes = ScriptedSizes(VOCABULARY.size, 96, 4, kv_tokens=1000)
    engine = ScriptedEngine(
        "scripted", sizes, script, clock, version=3, weights_sha="sha3", transfer=transfer
    )
    agents = AgentPool(name, 1, clock)
    link = LeaderLink(
        name,
        1,
        KEY,
        find_leader=lambda: find_leader(world.database.url),
        snapshot=lambda: host.snapshot(),
        on_frame=lambda frame: host.on_frame(frame),
    )
    door = KvDoor(transfer, lambda rollout, hop: host.depart(rollout, hop), here=here)
    closer = Closer(world.database, HostFence(name, 1), world.blobs, JOB, clock)
    ports = HostPorts(
        engine=engine,
        chat=CHAT,
        agents=agents,
        closer=closer,
        blobs=world.blobs,
        clock=clock,
        emit=link.send,
        set_mode=lambda mode: None,
        kv=door,
    )
    identity = HostIdentity(name, 1, ATTEMPT, OrganizationId("org_r"))
    host = RolloutHost(identity, SPEC, ports, SyncPlan(world.folder / name, 5.0))
    return OneHost(engine, transfer, door, host, link, agents, ahead)


def _context() -> JobContext:
    """What the executor reads of a job to place a rollout."""
    made = SimpleNamespace(
        job_id=JOB,
        attempt_id=ATTEMPT,
        spec=SimpleNamespace(seed=11),
        task=lambda group: SimpleNamespace(json='{"id": "task-1"}'),
        environment=lambda group: 0,
        is_evaluation=lambda group: False,
    )
    return cast(JobContext, made)


def _connect_node(leader: Leader, node: ToolNode) -> None:
    async def close() -> None:
        return None

    snapshot = HostSnapshot(
        NODE, 1, HostKind.NODE, None, 0, data_address=node.address, data_key=DATA_KEY
    )
    channel = cast(Channel, SimpleNamespace(send=lambda record: None, close=close))
    leader.hosts.connected[NODE] = Connected(NODE, 1, HostKind.NODE, channel, snapshot)


def _tap(one: TwoHosts) -> None:
    send = one.leader.hosts.send

    def tapped(host_id: HostId, epoch: int, record: object) -> bool:
        if isinstance(record, Place | Suspend):
            one.kept.append((host_id, record))
        return (host_id, type(record)) in one.lost or send(host_id, epoch, record)

    one.leader.hosts.send = tapped  # type: ignore[method-assign]
