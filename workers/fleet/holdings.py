"""What this node holds for rollouts, and the only ways in which it lets go of it.

A try fails once, with an end and a cause: the leader is told, its processes are ended, its record
stays as a tombstone until a release. A released try leaves nothing. Slots are given back after the
sandbox's processes are gone, never before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domain.events import TryFailed
from domain.ids import AttemptId, HostId, RolloutId
from domain.sandbox import MemberKey, SandboxPurpose
from domain.states import End
from infra.logging import get_logger
from sandboxes.node.generation import Generation
from sandboxes.node.registry import Failure, HeldTry, Registry, TryKey, TryState
from sandboxes.node.relief import Relief
from sandboxes.node.slots import Slots
from sandboxes.ports import Runtime, SandboxEvent
from venusrl.env.host.judges import JudgeUses
from venusrl.env.host.ports import EnvironmentFault, EnvironmentProcess, InstanceKey
from venusrl.env.messages import Json, Task
from workers.fleet.environment_pool import EnvironmentKey
from workers.fleet.output import Outputs, Unkept
from workers.fleet.packages import Package, PackageRef
from workers.fleet.rooms import Rooms, Unwatched, agent_room

CAUSE_CHARS_MAX: Final = 2000
"""A cause is a row of the ledger; tracebacks of user code may be far longer."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a try's environment is made of."""

    environment: EnvironmentKey
    package_ref: PackageRef
    config: Mapping[str, Json]
    task: Task


@dataclass(slots=True, eq=False, kw_only=True)
class FleetTry(HeldTry):
    """A held try with its environment. `process` is where its instance lives now, if anywhere."""

    origin: Origin
    package: Package | None = None
    process: EnvironmentProcess | None = None
    tools: tuple[dict[str, object], ...] = ()
    judged: JudgeUses = field(default_factory=dict)
    """What it asked of judges in processes that it no longer lives in."""

    @property
    def instance(self) -> InstanceKey:
        """Its name inside the environment process."""
        return InstanceKey(self.key.rollout_id, self.key.try_)


@dataclass(slots=True)
class Holdings:
    """All tries of this node. `notify` sends one frame to the leader and never waits."""

    host_id: HostId
    epoch: int
    runtime: Runtime
    slots: Slots
    notify: Callable[[object], None]
    rooms: Rooms = field(default_factory=Unwatched)
    output: Outputs = field(default_factory=Unkept)
    relief: Relief | None = None
    """Takes memory back under pressure; None where nobody counts it."""
    registry: Registry[FleetTry] = field(default_factory=Registry)
    broken: "asyncio.Future[None]" = field(init=False)
    """Fails when background work meets a defect: the process must end, not go on half dead."""
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Hear of sandboxes that end by themselves."""
        self.broken = asyncio.get_running_loop().create_future()
        self.runtime.listen(self.on_sandbox_ended)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run work in the background and keep it until it ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    def on_sandbox_ended(self, event: SandboxEvent) -> None:
        """A sandbox is gone: its try is over, whatever runs in it."""
        held = self.registry.of_member(event.key)
        if held is not None and held.state in (TryState.FORKING, TryState.READY):
            self.fail(held, End.SANDBOX_LOST, f"{event.kind.value}: {event.cause}")

    def lose(self, member: MemberKey, cause: str) -> None:
        """The node takes a sandbox away, or found it broken: its try is over."""
        held = self.registry.of_member(member)
        if held is not None:
            self.fail(held, End.SANDBOX_LOST, cause)

    def fail(self, held: FleetTry, end: End, cause: str) -> None:
        """End a try; the first failure counts, and none counts after it was released or sealed."""
        if held.failure is not None or held.is_released or held.state is TryState.SEALED:
            return
        held.failure = Failure(end, cause[:CAUSE_CHARS_MAX])
        held.state = TryState.FAILED
        get_logger().warning(
            "try.failed",
            rollout_id=held.key.rollout_id,
            try_=held.key.try_,
            end=end.value,
            cause=held.failure.cause,
        )
        self.tell_failure(held)
        self.spawn(self.dispose(held))

    def tell_failure(self, held: FleetTry) -> None:
        """Tell the leader how a try ended; repeating it is harmless."""
        assert held.failure is not None
        key, failure = held.key, held.failure
        self.notify(TryFailed(key.rollout_id, key.try_, held.hop, failure.end, failure.cause))

    async def release(self, rollout_id: RolloutId, try_: int) -> None:
        """Destroy what a rollout holds up to this try."""
        await self._let_go(self.registry.up_to(rollout_id, try_))

    async def release_tries(self, keys: tuple[TryKey, ...]) -> None:
        """Destroy exactly these tries."""
        found = [self.registry.get(key) for key in keys]
        await self._let_go([held for held in found if held is not None])

    async def release_attempt(self, attempt_id: AttemptId) -> None:
        """Destroy all tries of an attempt."""
        await self._let_go(self.registry.of_attempt(attempt_id))

    async def close(self) -> None:
        """Destroy everything, then wait for all background work."""
        await self._let_go(self.registry.all())
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def dispose(self, held: FleetTry) -> None:
        """End everything that a try runs; may be called any number of times."""
        if held.reply is not None:
            held.reply.cancel()
        # Not awaited: user code that blocks its process must not keep a slot from others.
        self.spawn(self.close_instance(held))
        await self.free_sandbox(held)

    async def close_instance(self, held: FleetTry) -> None:
        """Forget its environment instance."""
        process, held.process = held.process, None
        try:
            if process is not None and process.fault is None:
                await process.close(held.instance)
        except EnvironmentFault as fault:
            get_logger().info("instance.not_closed", cause=str(fault))
        key, failed = held.key, held.failure is not None
        attempt_id = held.origin.environment.attempt_id
        self.output.ended(attempt_id, key.rollout_id, key.try_, failed=failed)

    async def free_sandbox(self, held: FleetTry) -> None:
        """Destroy its sandbox and give its slot and its memory back."""
        if self.relief is not None:
            self.relief.forget(held.member)
        await self.runtime.destroy(held.member)
        if self.slots.account is not None:
            self.slots.account.end(held.member, has_finished=held.state is TryState.SEALED)
        if held.has_slot:
            held.has_slot = False
            self.slots.give(SandboxPurpose.AGENT)
            self.rooms.given(agent_room(*held.key))

    def took_room(self, held: FleetTry) -> None:
        """A slot is the try's from now on."""
        held.has_slot = True
        self.rooms.taken(agent_room(*held.key))

    def generates(self, held: FleetTry, generation: Generation) -> None:
        """Its rollout is in generation: nobody needs its sandbox for a while."""
        if self.relief is not None and held.calls is not None:
            self.relief.generations.begin(held.member, generation)

    async def wake(self, held: FleetTry) -> None:
        """Its sandbox runs when this returns. Raises SandboxError when it could not be resumed."""
        if self.relief is not None:
            await self.relief.wake(held.member)

    def turn_ended(self, held: FleetTry) -> None:
        """A turn was recorded: what its sandbox held at most teaches what the next ones will need."""
        if self.slots.account is not None:
            self.slots.account.turn_ended(held.member)

    def _settle(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not self.broken.done():
            self.broken.set_exception(error)

    async def _let_go(self, tries: list[FleetTry]) -> None:
        gone = [held for held in tries if self.registry.remove(held)]
        await asyncio.gather(*(self.dispose(held) for held in gone))
