"""What this node does about the rows of its sandboxes: claims, starts, moves and ends them.

    look: facts to rows -> wishes of rows -> claim | start, pause, resume, end -> facts ...

A look is level-triggered: a call at the door only makes it come sooner. While Postgres is away nothing
new is begun, and lifetimes end by this node's own clock. A sandbox without a row of this node's is
destroyed; a row without a sandbox is ended, so that neither outlives the other by more than a look.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from domain.errors import FencedOut, StoreUnavailable, VenusError
from domain.sandbox import MemberKey
from domain.tenant_sandboxes import SandboxEnd, SandboxState
from infra.clock import Clock
from infra.logging import get_logger
from infra.settings import Settings
from infra.sharing import shared
from sandboxes.node.relief import Relief
from sandboxes.ports import EventKind, Runtime, SandboxEvent
from stores.system import tenant_sandboxes as store
from stores.system.tenant_sandboxes import Ended, Wish
from stores.unit_of_work import Database, HostFence
from venusrl.env.sandbox import SandboxError
from workers.fleet.tenants import rows
from workers.fleet.tenants.held import HeldSandbox
from workers.fleet.tenants.rows import Fact, LetGo, Moved, Started, Stays
from workers.fleet.tenants.starts import NoRoom, Starter, StartRefused, held_of, opened

LOOK_S: Final = 1.0
"""How late the end of a lifetime is noticed, and a wish whose call at the door was lost."""

AGAIN_S: Final = 5.0
"""A fork that found no room is left to other nodes for so long."""

DETAIL_CHARS_MAX: Final = 2000
"""Of a row; what a runtime says of an end may be longer."""

LAST_RANK: Final = -1
"""In the ladder's order: rollouts have a next try, a tenant's sandbox has none, so that it goes last."""

ENDS: Final = {
    EventKind.OOM: SandboxEnd.OUT_OF_MEMORY,
    EventKind.EXITED: SandboxEnd.EXITED,
    EventKind.LOST: SandboxEnd.LOST,
}

TAUGHT: Final = (SandboxEnd.KILLED, SandboxEnd.TIMED_OUT)
"""Ends of sandboxes that lived as their owners meant them to."""


@dataclass(slots=True)
class TenantSandboxes:
    """All sandboxes of tenants on this node."""

    database: Database
    fence: HostFence
    runtime: Runtime
    relief: Relief
    starter: Starter
    clock: Clock
    settings: Settings
    """Name the keys under which variables are sealed."""
    held: dict[str, HeldSandbox] = field(default_factory=dict)
    _facts: list[Fact] = field(default_factory=list)
    _refused: dict[str, float] = field(default_factory=dict)
    """Forks that found no room here, and until when they are left to others."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next: "asyncio.Task[None] | None" = None
    """The look that waits for the one before it."""
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    broken: "asyncio.Future[None]" = field(init=False)
    """Fails when background work meets a defect: the process must end, not go on half dead."""

    def __post_init__(self) -> None:
        """Hear of sandboxes that end by themselves."""
        self.broken = asyncio.get_running_loop().create_future()
        self.runtime.listen(self.on_sandbox_ended)

    async def run(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()

    async def settle(self, sandbox_id: str) -> None:
        """Look now, and once more when what this look began is over; empty: for all that starts."""
        await self.look()
        every = list(self.held.values()) if not sandbox_id else [self.held.get(sandbox_id)]
        works = {one.work for one in every if one is not None and one.work is not None}
        if works:
            await asyncio.wait(works)
        await self.look()

    async def look(self) -> None:
        """One look that begins after this call, shared by all who ask meanwhile."""
        if self._next is None:
            self._next = self._spawn(self._look())
        await shared(self._next)

    async def _look(self) -> None:
        async with self._looking:
            self._next = None
            before, facts = dict(self.held), list(self._facts)
            now = self.clock.monotonic()
            self._refused = {group: at for group, at in self._refused.items() if at > now}
            try:
                async with self.database.begin(self.fence) as connection:
                    await rows.write(connection, self.fence, facts)
                    wishes = await store.wishes(connection, self.fence)
                    claimed = await store.claim(connection, self.fence, tuple(self._refused))
            except StoreUnavailable as away:
                get_logger().warning("sandboxes.store_away", cause=str(away))
                self._end_by_clock()
                return
            except FencedOut:
                # Who ends the process is another's decision; nothing of this epoch counts any more.
                return
            del self._facts[: len(facts)]
            self._follow(before, wishes, {row.id for row in claimed})
            self._begin(claimed)

    def on_sandbox_ended(self, event: SandboxEvent) -> None:
        """A sandbox is gone by itself."""
        held = self._of_member(event.key)
        if held is not None:
            self._end(held, ENDS[event.kind], event.cause)

    def lose(self, member: MemberKey, cause: str) -> bool:
        """The node takes a sandbox away, or found it broken; False when it is no tenant's."""
        held = self._of_member(member)
        if held is None:
            return False
        is_pressed = cause.startswith(SandboxEnd.MEMORY_PRESSURE.value)
        self._end(held, SandboxEnd.MEMORY_PRESSURE if is_pressed else SandboxEnd.LOST, cause)
        return True

    async def close(self) -> None:
        """Stop all background work; the runtime's own end takes the sandboxes along."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _of_member(self, member: MemberKey) -> HeldSandbox | None:
        return next((one for one in self.held.values() if one.member == member), None)

    def _follow(
        self, before: dict[str, HeldSandbox], wishes: Sequence[Wish], claimed: set[str]
    ) -> None:
        """Do what is wanted of what is held; what is only there or only written down ends."""
        wanted = {wish.sandbox_id for wish in wishes}
        for id in [id for id, one in before.items() if id not in wanted and not one.is_moving]:
            held = self.held.pop(id, None)
            if held is not None:
                get_logger().warning("sandbox.orphan", sandbox_id=id)
                self._spawn(self._dispose(held, has_finished=False))
        over = {fact.sandbox_id for fact in self._facts if isinstance(fact, Ended)}
        for wish in wishes:
            held = self.held.get(wish.sandbox_id)
            if held is not None:
                self._act(held, wish)
            elif wish.sandbox_id not in over | claimed:
                words = "its node does not hold it"
                self._facts.append(Ended(wish.sandbox_id, SandboxEnd.LOST, words))

    def _act(self, held: HeldSandbox, wish: Wish) -> None:
        if held.state is SandboxState.REQUESTED:
            return  # it is being started, in bounded time
        if held.state is wish.state:
            held.deadline = self.clock.monotonic() + wish.left_s
        if wish.desired is SandboxState.ENDED:
            self._end(held, SandboxEnd.KILLED, "its owner deleted it")
        elif held.state is wish.state and wish.left_s <= 0:
            self._time_out(held)
        elif wish.desired is not held.state and not held.is_moving:
            held.work = self._spawn(self._move(held, wish.desired))

    def _begin(self, claimed: Sequence[Any]) -> None:
        if not claimed:
            return
        members = [held_of(row) for row in claimed]
        work = self._spawn(self._start(claimed, members))
        for one in members:
            one.work = work
            self.held[one.sandbox_id] = one
        self._woken.set()  # another fork may wait behind this one

    async def _start(self, claimed: Sequence[Any], members: Sequence[HeldSandbox]) -> None:
        ids = tuple(one.sandbox_id for one in members)
        try:
            for row, one in zip(claimed, members, strict=True):
                one.env = opened(self.settings, row)
            await self.starter.start(members)
        except StartRefused as refused:
            for one in members:
                self._end(one, refused.cause, refused.detail)
            return
        except NoRoom as full:
            self._refused[members[0].group_id] = self.clock.monotonic() + AGAIN_S
            for id in ids:
                self.held.pop(id, None)
            self._tell(LetGo(ids, str(full)))
            return
        for one in [one for one in members if one.sandbox_id in self.held]:
            one.state = SandboxState.RUNNING
            self.relief.generations.ranks[one.member] = LAST_RANK
            if self.runtime.get(one.member) is None:
                self._end(one, SandboxEnd.EXITED, "it ended as it started")
        self._tell(Started(ids))
        get_logger().info("sandboxes.started", group_id=members[0].group_id, count=len(ids))

    async def _move(self, held: HeldSandbox, desired: SandboxState) -> None:
        """Pause it or let it go on. What cannot be done is no longer wanted then."""
        try:
            if desired is SandboxState.PAUSED:
                await self.runtime.pause(held.member)
                await self._give_memory_back(held)
            else:
                await self.runtime.resume(held.member)
        except SandboxError as error:
            if error.reason == "lost":
                self._end(held, SandboxEnd.LOST, error.detail)
                return
            held.complaint = error.detail
            self._tell(Stays(held.sandbox_id, held.state))
            return
        held.complaint = ""
        if held.sandbox_id in self.held:
            held.state = desired
            self._tell(Moved(held.sandbox_id, desired))

    async def _give_memory_back(self, held: HeldSandbox) -> None:
        """A paused one needs none of it: to swap with it, where the runtime can."""
        can, use = self.runtime.capabilities(), self.relief.account.use(held.member)
        if not can.page_out or use is None:
            return
        try:
            await self.runtime.reclaim(held.member, use.private_bytes)
        except (VenusError, OSError) as error:
            get_logger().info("sandbox.not_reclaimed", cause=str(error))

    def _end_by_clock(self) -> None:
        now = self.clock.monotonic()
        for held in list(self.held.values()):
            if held.deadline is not None and held.deadline <= now:
                self._time_out(held)

    def _time_out(self, held: HeldSandbox) -> None:
        is_paused = held.state is SandboxState.PAUSED
        words = "it was paused for too long" if is_paused else "its lifetime was over"
        self._end(held, SandboxEnd.TIMED_OUT, words)

    def _end(self, held: HeldSandbox, cause: SandboxEnd, detail: str) -> None:
        """It is over, whatever runs in it; the first cause counts."""
        if self.held.pop(held.sandbox_id, None) is None:
            return
        held.state = SandboxState.ENDED
        get_logger().info("sandbox.ended", sandbox_id=held.sandbox_id, cause=cause.value)
        held.work = self._spawn(self._dispose(held, has_finished=cause in TAUGHT))
        self._tell(Ended(held.sandbox_id, cause, detail[:DETAIL_CHARS_MAX]))

    async def _dispose(self, held: HeldSandbox, has_finished: bool) -> None:
        self.relief.forget(held.member)
        await self.runtime.destroy(held.member)
        self.starter.give(held, has_finished)

    def _tell(self, fact: Fact) -> None:
        self._facts.append(fact)
        self._woken.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settle)
        return task

    def _settle(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not self.broken.done():
            self.broken.set_exception(error)
