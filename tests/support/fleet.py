"""A node agent without a leader: real sandboxes, environment processes, journal and data port."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from domain.events import SandboxReady, TryFailed
from domain.ids import AttemptId, GroupId, HostId, RolloutId, group_id, rollout_id
from domain.sandbox import ForkMember, SandboxLimits
from domain.wire import Fork, JournalTurn, TakeTurn
from environments.package import pack
from infra.clock import SystemClock
from infra.ids import IdSource
from sandboxes.node.account import NodeAccount, make_account
from sandboxes.node.elastic import as_elastic
from sandboxes.node.registry import TryKey
from sandboxes.node.relief import Relief
from sandboxes.node.sampler import Sampler
from sandboxes.node.slots import Slots
from sandboxes.runtimes.process import ProcessRuntime
from stores.blobs import Blob, Blobs
from stores.system.outputs import Output
from tests.support.waiting import eventually
from venusrl.env.host.connection import LogSink
from venusrl.env.host.ports import EnvironmentProcess
from venusrl.env.host.process import discard_log, start_environment
from venusrl.env.messages import Json, Message, ToolCall
from venusrl.env.wire import message_to_json
from workers.fleet.data_server import DataServer
from workers.fleet.environment_pool import EnvironmentKey, EnvironmentPool, Start
from workers.fleet.forks import Forker
from workers.fleet.holdings import FleetTry, Holdings
from workers.fleet.output import OutputBook
from workers.fleet.packages import Package, Packages
from workers.fleet.turns import TurnServer
from workers.rollout.agent_client import AgentClient

ATTEMPT = AttemptId("att_" + IdSource().ulid())
GROUP = group_id(ATTEMPT, 0)
NODE = HostId("host_node0")
ENGINE = HostId("host_engine0")
DATA_KEY = "test-data-key"
T = TypeVar("T")


async def start_process(
    key: EnvironmentKey,
    package: Package,
    config: Mapping[str, Json],
    log: LogSink = discard_log,
) -> EnvironmentProcess:
    """Start an environment's process of a job that gives it nothing."""
    return await start_environment(package.folder, package.manifest, config, log)


def starting(sink: Callable[[AttemptId], LogSink]) -> Start:
    """The same; what it prints goes to its attempt's sink."""
    return lambda key, package, config: start_process(key, package, config, sink(key.attempt_id))


def member(index: int = 0, group: GroupId = GROUP) -> RolloutId:
    """A rollout of the group."""
    return rollout_id(group, index)


def call(expression: str, number: int = 0) -> Message:
    """An assistant message that calls the calculator."""
    arguments = json.dumps({"expression": expression})
    return Message("assistant", "", (ToolCall(f"c{number}", "calculator", arguments),))


def answer(text: str) -> Message:
    """An assistant message that ends the episode."""
    return Message("assistant", text)


def turn_frame(
    message: Message,
    turn: int = 0,
    *,
    index: int = 0,
    try_: int = 1,
    hop: int = 1,
    tokens: tuple[int, ...] = (1, 2, 3),
) -> TakeTurn:
    """A host's intent."""
    return TakeTurn(
        request=0,
        rollout_id=member(index),
        try_=try_,
        hop=hop,
        turn=turn,
        token_ids=tokens,
        logprobs=(-0.5,) * len(tokens),
        versions=(0,) * len(tokens),
        finish="stop",
        assistant=dict(message_to_json(message)),
    )


@dataclass
class Node:
    """The parts, and what was sent to the leader that is not there."""

    runtime: ProcessRuntime
    holdings: Holdings
    environments: EnvironmentPool
    forker: Forker
    turns: TurnServer
    package: Blob
    blobs: Blobs
    account: NodeAccount
    sampler: Sampler
    sent: list[Any] = field(default_factory=list)
    printed: list[Output] = field(default_factory=list)
    client: AgentClient = field(init=False)
    address: str = ""

    def dial(self, key: str = DATA_KEY) -> AgentClient:
        """Another rollout host's connection."""
        return AgentClient(self.address, key, host_id=ENGINE, epoch=1, clock=SystemClock())

    def fork(self, *indexes: int, try_: int = 1, hop: int = 0, **more: Any) -> None:
        """Ask for these members."""
        self.forker.fork(self.frame(*indexes, try_=try_, hop=hop, **more))

    def frame(
        self,
        *indexes: int,
        try_: int = 1,
        hop: int = 0,
        config: Mapping[str, Json] | None = None,
        prompt: str = "12+07",
        limits: SandboxLimits | None = None,
    ) -> Fork:
        """A leader's request."""
        return Fork(
            attempt_id=ATTEMPT,
            group_id=GROUP,
            members=tuple(ForkMember(member(i), try_, hop, 7) for i in indexes),
            environment_version_id="ever_1",
            package_uri=self.package.uri,
            package_sha=self.package.sha,
            config_json=json.dumps(config or {}, sort_keys=True),
            task_json=json.dumps({"id": "train-0000", "prompt": prompt, "answer": "19"}),
            limits=limits or SandboxLimits(memory_bytes=256 << 20),
        )

    async def ready(self, *indexes: int, try_: int = 1, **more: Any) -> None:
        """Fork these members and wait until they are ready, then attach under hop 1."""
        self.fork(*indexes, try_=try_, **more)
        for index in indexes:
            await self.wait_ready(index, try_)
            await self.client.attach(member(index), try_, 1)

    async def wait_ready(self, index: int = 0, try_: int = 1) -> list[SandboxReady]:
        """What the leader hears of a try that became ready."""
        return await eventually(lambda: self.heard(SandboxReady, index, try_))

    async def take(self, message: Message, turn: int = 0, **more: Any) -> JournalTurn:
        """One turn through the data port."""
        return await self.client.take_turn(turn_frame(message, turn, **more))

    def heard(self, kind: type[T], index: int = 0, try_: int = 1) -> list[T]:
        """Frames of a kind about one try."""
        return [
            frame
            for frame in self.sent
            if isinstance(frame, kind)
            and getattr(frame, "rollout_id", None) == member(index)
            and getattr(frame, "try_", None) == try_
        ]

    async def failure(self, index: int = 0, try_: int = 1) -> TryFailed:
        """How a try failed."""
        return (await eventually(lambda: self.heard(TryFailed, index, try_)))[0]

    def held(self, index: int = 0, try_: int = 1) -> FleetTry:
        """A held try."""
        found = self.holdings.registry.get(TryKey(member(index), try_))
        assert found is not None
        return found


@asynccontextmanager
async def running_node(
    folder: Path, package: Path, capacity: int = 8, memory_bytes: int = 64 << 30
) -> AsyncIterator[Node]:
    """A node that serves this package; nothing of it is left afterwards.

    Its sampler looks when a test says so.
    """
    clock = SystemClock()
    blobs = Blobs((folder / "objects").as_uri())
    blob = await blobs.create("package.tar.gz", pack(package))
    runtime = ProcessRuntime(folder / "guest")
    printed: list[Output] = []
    output = OutputBook(blobs, clock, printed.append)
    environments = EnvironmentPool(starting(output.sink), clock)
    sent: list[Any] = []
    account = make_account(memory_bytes, 8.0, 1, owns_all=True)
    slots = Slots(capacity, 1, account)
    relief = Relief(account, as_elastic(runtime), lambda key, cause: holdings.lose(key, cause))
    holdings = Holdings(NODE, 1, runtime, slots, sent.append, output=output, relief=relief)
    packages = Packages(blobs, folder / "packages")
    turns = TurnServer(holdings, environments, clock)
    server = DataServer(turns, DATA_KEY)
    node = Node(
        runtime=runtime,
        holdings=holdings,
        environments=environments,
        forker=Forker(holdings, packages, environments),
        turns=turns,
        package=blob,
        blobs=blobs,
        account=account,
        sampler=Sampler(runtime, slots, relief, clock),
        sent=sent,
        printed=printed,
    )
    node.address = await server.open()
    node.client = node.dial()
    try:
        yield node
        assert not holdings.broken.done(), holdings.broken.exception()
    finally:
        await node.client.close()
        await server.close()
        await holdings.close()
        await environments.close()
        await output.close()
        assert runtime.keys() == ()
        assert account.members() == ()
        assert account.ledger.faults() == []
        await runtime.close()
