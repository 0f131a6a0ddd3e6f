"""What all runtimes do alike: one sandbox a key, watched, and destroyed as a whole.

    fork -> start (once a key) -> live -> gone by itself, told to the listeners
                                       -> destroyed, told to nobody

A runtime says how a sandbox is made and what it may hold at most.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from domain.sandbox import MemberKey
from infra.sharing import WorkCancelled, shared
from sandboxes.ports import (
    Capabilities,
    EventKind,
    ForkFailed,
    Listener,
    Sandbox,
    SandboxEvent,
    SandboxSpec,
)
from venusrl.env.sandbox import SandboxError

BUSY_POLL_S: Final = 0.1
"""How often a sandbox that runs a request is measured: the overshoot of its memory limit is what
it allocates, below its own hard limits, within this time."""

IDLE_POLLS: Final = 10
"""An idle sandbox is measured every so many polls; only its background processes can grow."""


class Kept(Sandbox, Protocol):
    """A sandbox as its runtime keeps it."""

    wanted: bool
    """Set before it is destroyed on purpose, so that its end is no event."""
    cause: str
    """Why it ended."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        ...

    async def pause(self) -> None:
        """Stop it. Raises SandboxError."""
        ...

    async def resume(self) -> None:
        """Let it go on. Raises SandboxError."""
        ...

    async def reclaim(self, wanted_bytes: int, /) -> int:
        """Take memory back; how much came. Raises SandboxError."""
        ...

    def kill(self, kind: EventKind, cause: str) -> None:
        """End it and everything inside; the first cause counts."""
        ...

    async def gone(self) -> None:
        """Wait until it is reaped. Raises TimeoutError."""
        ...

    def event(self) -> SandboxEvent:
        """How it ended."""
        ...


S = TypeVar("S", bound=Kept)


class KeyedRuntime(ABC, Generic[S]):
    """Sandboxes by key. Made on the event loop's thread, which must be the process's main thread."""

    def __init__(self) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._members: dict[MemberKey, asyncio.Task[S]] = {}
        self._live: dict[MemberKey, S] = {}
        self._listeners: list[Listener] = []
        self._watch: asyncio.Task[None] | None = None

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this runtime can do here."""

    @abstractmethod
    async def _make(self, spec: SandboxSpec) -> S:
        """Start one. Raises ForkFailed; nothing is left then."""

    @abstractmethod
    def _excess(self, sandbox: S) -> str | None:
        """Why a sandbox must be killed for what it holds; None while it keeps to its limits."""

    def listen(self, listener: Listener) -> None:
        """Tell this listener of ends from now on."""
        self._listeners.append(listener)

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[S, ...]:
        """One sandbox for each member, in order, existing ones included. Raises ForkFailed."""
        self._watch = self._watch or asyncio.create_task(self._watch_loop())
        fresh = [spec.key for spec in members if spec.key not in self._members]
        tasks = [self._member(spec) for spec in members]
        try:
            return tuple([await shared(task) for task in tasks])
        except (ForkFailed, WorkCancelled, asyncio.CancelledError) as error:
            await asyncio.gather(*(self.destroy(key) for key in fresh))
            if isinstance(error, WorkCancelled):
                raise ForkFailed("a sandbox was destroyed while it started") from None
            raise

    def get(self, key: MemberKey) -> S | None:
        """The live sandbox of a key."""
        return self._live.get(key)

    def keys(self) -> tuple[MemberKey, ...]:
        """Keys of all live sandboxes."""
        return tuple(self._live)

    async def pause(self, key: MemberKey) -> None:
        """Stop everything inside. Raises SandboxError."""
        await self._known(key).pause()

    async def resume(self, key: MemberKey) -> None:
        """Let it go on. Raises SandboxError."""
        await self._known(key).resume()

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Take about so many bytes of its memory back; how many came. Raises SandboxError."""
        return await self._known(key).reclaim(bytes_)

    async def destroy(self, key: MemberKey) -> None:
        """End a sandbox and everything inside; returns when it is gone. Unknown keys too."""
        task = self._members.pop(key, None)
        if task is None:
            return
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # a failed start was told to whoever asked for it
        sandbox = self._live.pop(key, None)
        if sandbox is not None:
            sandbox.wanted = True
            sandbox.kill(EventKind.EXITED, "it was destroyed")
            await sandbox.gone()

    async def close(self) -> None:
        """Destroy all sandboxes."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await asyncio.gather(*(self.destroy(key) for key in tuple(self._members)))

    def _known(self, key: MemberKey) -> S:
        sandbox = self._live.get(key)
        if sandbox is None:
            raise SandboxError("lost", "there is no such sandbox")
        return sandbox

    def _member(self, spec: SandboxSpec) -> asyncio.Task[S]:
        task = self._members.get(spec.key)
        if task is None:
            task = self._members[spec.key] = asyncio.create_task(self._start(spec))
        return task

    async def _start(self, spec: SandboxSpec) -> S:
        sandbox = await self._make(spec)
        if sandbox.has_ended:
            raise ForkFailed(f"a sandbox ended as it started: {sandbox.cause}")
        self._live[spec.key] = sandbox
        return sandbox

    def _gone(self, sandbox: S) -> None:
        """A sandbox ended, whyever."""
        if sandbox.wanted or sandbox.key not in self._live:
            return  # a start that failed is told to whoever asked for it
        self._live.pop(sandbox.key, None)
        self._members.pop(sandbox.key, None)
        for listener in self._listeners:
            listener(sandbox.event())

    async def _watch_loop(self) -> None:
        """Kill what holds more than its limits say; busy sandboxes are looked at each time."""
        poll = 0
        while True:
            await asyncio.sleep(BUSY_POLL_S)
            poll += 1
            for sandbox in tuple(self._live.values()):
                if sandbox.is_busy or poll % IDLE_POLLS == 0:
                    self._check(sandbox)

    def _check(self, sandbox: S) -> None:
        excess = self._excess(sandbox)
        if excess is not None:
            sandbox.kill(EventKind.OOM, excess)
