"""The `process` runtime: forks bubblewrap sandboxes, watches their memory, destroys whole trees.

All starts happen on the event loop's thread, which must be the process's main thread: a sandbox
dies with the thread that started it. A start costs the loop one fork; the rest is awaited.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.sandbox import MemberKey
from infra.sharing import WorkCancelled, shared
from sandboxes.ports import (
    Capabilities,
    EventKind,
    ForkFailed,
    Isolation,
    Listener,
    SandboxSpec,
)
from sandboxes.runtimes.process.bwrap import Installation
from sandboxes.runtimes.process.sandbox import ProcessSandbox, start
from venusrl.env.sandbox import SandboxError

STARTS_MAX: Final = 8
"""Starts in flight; more of them would only wait for the same cores."""

BUSY_POLL_S: Final = 0.1
"""How often a sandbox that runs a request is measured: the overshoot of its memory limit is what
its processes allocate, each below its own hard limit, within this time."""

IDLE_POLLS: Final = 10
"""An idle sandbox is measured every so many polls; only its background processes can grow."""


PIDS_SLACK: Final = 8
"""The kernel's own count includes threads and is exact; this check is for machines where it cannot
count, and must not fire before it."""


class ProcessRuntime:
    """Sandboxes of this machine over bubblewrap."""

    def __init__(self, scratch: Path) -> None:
        """`scratch` is a folder of its own for the files that all sandboxes share."""
        assert threading.current_thread() is threading.main_thread()
        self._scratch = scratch
        self._installation: Installation | None = None
        self._starts = asyncio.Semaphore(STARTS_MAX)
        self._members: dict[MemberKey, asyncio.Task[ProcessSandbox]] = {}
        self._live: dict[MemberKey, ProcessSandbox] = {}
        self._listeners: list[Listener] = []
        self._watch: asyncio.Task[None] | None = None

    def capabilities(self) -> Capabilities:
        """Namespaces only, and nothing that needs a frozen memory image."""
        return Capabilities(
            isolation=Isolation.NAMESPACES,
            cow_memory=False,
            live_fork=False,
            balloon=False,
            page_out=False,
            checkpoint=False,
            network=False,
            rootless=True,
        )

    def listen(self, listener: Listener) -> None:
        """Tell this listener of ends from now on."""
        self._listeners.append(listener)

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[ProcessSandbox, ...]:
        """One sandbox for each member, in order, existing ones included. Raises ForkFailed."""
        self._installation = self._installation or Installation(self._scratch)
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

    def get(self, key: MemberKey) -> ProcessSandbox | None:
        """The live sandbox of a key."""
        return self._live.get(key)

    def keys(self) -> tuple[MemberKey, ...]:
        """Keys of all live sandboxes."""
        return tuple(self._live)

    async def pause(self, key: MemberKey) -> None:
        """Refused: its processes cannot be stopped together."""
        raise SandboxError("refused", "this runtime cannot pause")

    async def resume(self, key: MemberKey) -> None:
        """Nothing: none is ever paused."""
        if key not in self._live:
            raise SandboxError("lost", "there is no such sandbox")

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Zero: nothing can be taken back."""
        await self.resume(key)
        return 0

    async def destroy(self, key: MemberKey) -> None:
        """End a sandbox and all its processes; returns when they are gone."""
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
        """Destroy everything."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await asyncio.gather(*(self.destroy(key) for key in tuple(self._members)))
        if self._installation is not None:
            self._installation.close()
            self._installation = None

    def _member(self, spec: SandboxSpec) -> asyncio.Task[ProcessSandbox]:
        task = self._members.get(spec.key)
        if task is None:
            task = self._members[spec.key] = asyncio.create_task(self._start(spec))
        return task

    async def _start(self, spec: SandboxSpec) -> ProcessSandbox:
        assert self._installation is not None
        async with self._starts:
            sandbox = await start(spec, self._installation, self._gone)
        if sandbox.ended.is_set():
            raise ForkFailed(f"a sandbox ended as it started: {sandbox.cause}")
        self._live[spec.key] = sandbox
        return sandbox

    def _gone(self, sandbox: ProcessSandbox) -> None:
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
                if sandbox.link.is_busy or poll % IDLE_POLLS == 0:
                    _check(sandbox)


def _check(sandbox: ProcessSandbox) -> None:
    limits, stats = sandbox.spec.limits, sandbox.stats()
    if stats.private_bytes > limits.memory_bytes:
        held = f"{stats.private_bytes} of {limits.memory_bytes} bytes"
        sandbox.kill(EventKind.OOM, f"out of memory: its processes held {held}")
    elif stats.pids > limits.pids_max + PIDS_SLACK:
        sandbox.kill(EventKind.OOM, f"out of processes: {stats.pids} of {limits.pids_max}")
