"""Entry of a sandbox node agent's process: the composition root, under a keeper.

| loop | consumes | ends with |
|---|---|---|
| leader link | frames of the leader | the process |
| data server | requests of rollout hosts | the process |
| reaper | time, Postgres | the process |
| sampler | time, `/proc` | the process |
| teller | time, the account | the process |
| tenants' sandboxes | their rows in Postgres | the process |
| door | calls of the gateway | the process |
"""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from domain.events import NodeReported
from domain.ids import AttemptId, node_index
from domain.states import HostKind
from domain.wire import Fork, Grade, HostSnapshot, Release, ReleaseAttempt
from infra.clock import SystemClock
from infra.host_process import HostContext, run_host
from infra.link import LeaderLink
from infra.logging import get_logger
from infra.settings import SandboxKind, Settings
from sandboxes.node.account import make_account
from sandboxes.node.elastic import as_elastic
from sandboxes.node.machine import Machine, cores
from sandboxes.node.reaper import Orphans, Reaper
from sandboxes.node.registry import HeldTry, TryKey, TryState
from sandboxes.node.relief import Lose, Relief
from sandboxes.node.sampler import Sampler
from sandboxes.node.slots import Slots
from sandboxes.node.telling import RoomTeller
from sandboxes.ports import Runtime
from sandboxes.runtimes.process import ProcessRuntime
from sandboxes.runtimes.qemu import QemuRuntime
from stores.blobs import Blobs
from stores.system.leadership import find_leader
from stores.unit_of_work import Database, HostFence
from workers.fleet.data_server import DataServer
from workers.fleet.environment_pool import EnvironmentPool
from workers.fleet.forks import Forker
from workers.fleet.grading import Grader
from workers.fleet.grading_sandboxes import GradingSandboxes
from workers.fleet.holdings import Holdings
from workers.fleet.output import OutputBook, OutputWriter
from workers.fleet.ownership import PostgresOwnership
from workers.fleet.packages import Packages
from workers.fleet.rooms import RoomWriter, WatchedRooms
from workers.fleet.starting import EnvironmentStarter
from workers.fleet.tenants.parts import Tenants, make_tenants
from workers.fleet.turns import TurnServer
from workers.outbox import Outbox

GRADING_RESERVE: Final = 1
"""Sandboxes that agents never get; the leader's pool counts with the same number."""

DATA_KEY_BYTES: Final = 32
"""As long as the other keys between hosts."""


@dataclass(slots=True)
class NodeAgent:
    """All parts of a node agent; `on_frame` and `snapshot` serve the leader link."""

    context: HostContext
    holdings: Holdings
    forker: Forker
    grader: Grader
    environments: EnvironmentPool
    starter: EnvironmentStarter
    output: OutputBook
    sampler: Sampler
    teller: RoomTeller
    capacity: int
    data_key: str
    data_address: str = ""

    def on_frame(self, frame: object) -> None:
        """One frame of the leader; never waits."""
        match frame:
            case Fork():
                self.forker.fork(frame)
            case Release():
                self.holdings.spawn(self.holdings.release(frame.rollout_id, frame.try_))
            case ReleaseAttempt():
                self.holdings.spawn(self.release_attempt(frame))
            case Grade():
                self.grader.grade(frame)
            case _:
                get_logger().warning("frame.unknown", kind=type(frame).__name__)

    async def release_attempt(self, frame: ReleaseAttempt) -> None:
        """Destroy everything of an attempt."""
        await self.grader.release_attempt(frame.attempt_id)
        await self.holdings.release_attempt(frame.attempt_id)
        await self.environments.stop_attempt(frame.attempt_id)
        await self.starter.release(frame.attempt_id)
        self.output.released(frame.attempt_id)

    def snapshot(self) -> HostSnapshot:
        """All that is held. Failures are told again right after it: their frames may be lost."""
        registry = self.holdings.registry
        asyncio.get_running_loop().call_soon(self._tell_failures)
        held = registry.in_state(TryState.READY, TryState.SEALED)
        return HostSnapshot(
            host_id=self.context.host_id,
            epoch=self.context.epoch,
            kind=HostKind.NODE,
            attempt_id=None,
            slots=self.capacity,
            data_address=self.data_address,
            data_key=self.data_key,
            sandboxes=_names(held),
            starting=_names(registry.in_state(TryState.FORKING)),
            room=self.teller.said(),
        )

    def figures(self) -> dict[str, float]:
        """What the leader shows of this node."""
        return {
            "tries": float(len(self.holdings.registry.all())),
            "sandboxes": float(len(self.holdings.runtime.keys())),
            "environment_restarts": float(self.environments.restarts),
            "environment_lag_s": self.environments.lag_s,
            "outputs_lost": float(self.output.lost),
            **self.sampler.figures(),
        }

    def held(self) -> tuple[list[TryKey], tuple[AttemptId, ...]]:
        """What the reaper asks about."""
        tries = [one.key for one in self.holdings.registry.all()]
        return tries, self.environments.attempts()

    async def destroy(self, orphans: Orphans) -> None:
        """End what has no owner."""
        await self.holdings.release_tries(orphans.tries)
        for attempt_id in orphans.attempts:
            await self.release_attempt(ReleaseAttempt(attempt_id))

    def _tell_failures(self) -> None:
        for held in self.holdings.registry.in_state(TryState.FAILED):
            self.holdings.tell_failure(held)


def _names(tries: Iterable[HeldTry]) -> tuple[str, ...]:
    return tuple(f"{one.key.rollout_id}/{one.key.try_}" for one in tries)


async def serve(context: HostContext) -> None:
    """Be the node agent until the lease ends; nothing of it outlives the process."""
    settings, clock = context.settings, SystemClock()
    database = Database(settings.database_url)
    blobs = Blobs(settings.object_store_url)
    runtime = make_runtime(settings, scratch_folder(settings.home, context))
    sampler = _sampler(
        context,
        runtime,
        lambda key, cause: None if tenants.lose(key, cause) else holdings.lose(key, cause),
    )
    slots = sampler.slots
    packages = Packages(blobs, settings.home / "packages")
    link = _link(context, lambda: agent)
    fence = HostFence(context.host_id, context.epoch)
    outbox = Outbox(database, fence, clock, RoomWriter(clock, fence).write)
    rooms = WatchedRooms(clock, outbox.put)
    printed = Outbox(database, fence, clock, OutputWriter(fence).write)
    output = OutputBook(blobs, clock, printed.put)
    starter = EnvironmentStarter(settings, database, clock, output.sink)
    environments = EnvironmentPool(starter.start, clock)
    holdings = Holdings(context.host_id, context.epoch, runtime, slots, link.send, rooms, output)
    holdings.relief = sampler.relief
    tenants = make_tenants(settings, database, fence, runtime, sampler)
    grader = Grader(
        database=database,
        fence=fence,
        blobs=blobs,
        packages=packages,
        environments=environments,
        sandboxes=GradingSandboxes(runtime, slots, rooms),
        notify=link.send,
        clock=clock,
        output=output,
    )
    agent = NodeAgent(
        context=context,
        holdings=holdings,
        forker=Forker(holdings, packages, environments),
        grader=grader,
        environments=environments,
        starter=starter,
        output=output,
        sampler=sampler,
        teller=_teller(context, sampler, link),
        capacity=slots.capacity,
        data_key=secrets.token_hex(DATA_KEY_BYTES),
    )
    server = DataServer(TurnServer(holdings, environments, clock), agent.data_key)
    agent.data_address = await server.open()
    await tenants.open()
    reaper = Reaper(PostgresOwnership(database), clock, agent.held, agent.destroy)
    context.mode = "idle"
    loops = [link.run(), reaper.run(), sampler.run(), agent.teller.run(), tenants.run()]
    loops += [outbox.run(), printed.run()]
    try:
        await _until_over(context, holdings, tenants, loops)
    finally:
        await server.close()
        await tenants.close()
        await grader.close()
        await holdings.close()
        await outbox.flush()
        await environments.close()
        await starter.close()
        await output.close()
        await printed.flush()
        await runtime.close()
        await database.close()


def _link(context: HostContext, agent: Callable[[], NodeAgent]) -> LeaderLink:
    """The link of an agent that is still being put together."""
    return LeaderLink(
        context.host_id,
        context.epoch,
        context.birth.key,
        find_leader=lambda: find_leader(context.settings.database_url),
        snapshot=lambda: agent().snapshot(),
        on_frame=lambda frame: agent().on_frame(frame),
        figures=lambda: agent().figures(),
    )


def _sampler(context: HostContext, runtime: Runtime, lose: Lose) -> Sampler:
    """Of the memory that is named, all of it, or of what is found here, less what others use."""
    settings = context.settings
    named = settings.memory_of_node(node_index(context.host_id))
    capacity = named or Machine().capacity_bytes()
    account = make_account(capacity, cores(), GRADING_RESERVE, owns_all=bool(named))
    slots = Slots(settings.limits.sandboxes, GRADING_RESERVE, account)
    return Sampler(runtime, slots, Relief(account, as_elastic(runtime), lose), SystemClock())


def _teller(context: HostContext, sampler: Sampler, link: LeaderLink) -> RoomTeller:
    return RoomTeller(
        sampler.relief.account,
        sampler.slots,
        pressure=lambda: sampler.pressure,
        tell=lambda room: link.send(NodeReported(context.host_id, context.epoch, room)),
        clock=sampler.clock,
    )


async def _until_over(
    context: HostContext,
    holdings: Holdings,
    tenants: Tenants,
    loops: list[Coroutine[Any, Any, None]],
) -> None:
    tasks = [asyncio.create_task(loop) for loop in loops]
    stopped = asyncio.create_task(context.stopping.wait())
    ends: set[asyncio.Future[Any]] = {*tasks, stopped, holdings.broken, tenants.broken}
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)


def make_runtime(settings: Settings, scratch: Path) -> Runtime:
    """Sandboxes of the kind that the settings name. Templates of machines outlive their makers."""
    match settings.sandbox_kind:
        case SandboxKind.PROCESS:
            return ProcessRuntime(scratch)
        case SandboxKind.QEMU:
            return QemuRuntime(settings.home / "templates")


def scratch_folder(home: Path, context: HostContext) -> Path:
    """Where this epoch's guest files lie; what earlier epochs left is removed."""
    parent = home / "hosts" / context.host_id
    shutil.rmtree(parent, ignore_errors=True)
    return parent / f"e{context.epoch}"


if __name__ == "__main__":
    run_host(serve)
