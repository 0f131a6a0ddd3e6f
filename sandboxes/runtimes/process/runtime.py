"""The `process` runtime: forks sandboxes, watches their memory, destroys whole trees.

Members come from the zygote. Bubblewrap starts those that want a folder of the host mounted, and all
of them where no zygote can be had; `zygote_failure` says why not.

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
from sandboxes.runtimes.process import seccomp
from sandboxes.runtimes.process.bodies import BwrapBodies
from sandboxes.runtimes.process.bwrap import Installation
from sandboxes.runtimes.process.sandbox import Bodies, ProcessSandbox, start
from sandboxes.runtimes.process.zygote import WARM_MODULES, Zygote, ZygoteBodies, launch
from sandboxes.runtimes.swap import has_swap
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
    """Sandboxes of this machine that share its kernel."""

    def __init__(self, scratch: Path, warm: Sequence[str] | None = WARM_MODULES) -> None:
        """`scratch` is a folder of its own for the files that all sandboxes share.

        `warm` names the modules that the zygote imports; None: no zygote.
        """
        assert threading.current_thread() is threading.main_thread()
        self.zygote_failure: str | None = "not wanted" if warm is None else None
        """Why members do not come from a zygote here; None while they do."""
        self._scratch = scratch
        self._warm = tuple(warm or ())
        self._zygote: Zygote | None = None
        self._zygote_starts = asyncio.Lock()
        self._installation: Installation | None = None
        self._starts = asyncio.Semaphore(STARTS_MAX)
        self._members: dict[MemberKey, asyncio.Task[ProcessSandbox]] = {}
        self._live: dict[MemberKey, ProcessSandbox] = {}
        self._listeners: list[Listener] = []
        self._watch: asyncio.Task[None] | None = None

    def capabilities(self) -> Capabilities:
        """Namespaces only, and nothing that needs a frozen memory image.

        Before the first fork `cow_memory` is what is expected, afterwards what is so.
        """
        return Capabilities(
            isolation=Isolation.NAMESPACES,
            cow_memory=self.zygote_failure is None,
            live_fork=False,
            balloon=False,
            page_out=has_swap(),
            checkpoint=False,
            network=False,
            rootless=True,
            pause=True,
            syscall_filter=self._has_filter(),
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
        """Stop all its processes. Raises SandboxError."""
        await self._known(key).pause()

    async def resume(self, key: MemberKey) -> None:
        """Let them go on. Raises SandboxError."""
        await self._known(key).resume()

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Move about so many bytes to swap; how many went, 0 without swap. Raises SandboxError."""
        return await self._known(key).reclaim(bytes_)

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
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None
        if self._installation is not None:
            self._installation.close()
            self._installation = None

    def _has_filter(self) -> bool:
        if self._installation is not None:
            return bool(self._installation.filter_program)
        return seccomp.compiled() is not None

    def _known(self, key: MemberKey) -> ProcessSandbox:
        sandbox = self._live.get(key)
        if sandbox is None:
            raise SandboxError("lost", "there is no such sandbox")
        return sandbox

    def _member(self, spec: SandboxSpec) -> asyncio.Task[ProcessSandbox]:
        task = self._members.get(spec.key)
        if task is None:
            task = self._members[spec.key] = asyncio.create_task(self._start(spec))
        return task

    async def _start(self, spec: SandboxSpec) -> ProcessSandbox:
        async with self._starts:
            sandbox = await start(spec, await self._bodies(spec), self._gone)
        if sandbox.ended.is_set():
            raise ForkFailed(f"a sandbox ended as it started: {sandbox.cause}")
        self._live[spec.key] = sandbox
        return sandbox

    async def _bodies(self, spec: SandboxSpec) -> Bodies:
        """The zygote, if it can make this one."""
        assert self._installation is not None
        async with self._zygote_starts:
            if self._zygote is not None and not self._zygote.is_alive:
                self._zygote = None
            if self._zygote is None and self.zygote_failure is None and not spec.mounts:
                try:
                    self._zygote = await launch(self._installation, self._warm)
                except ForkFailed as error:
                    self.zygote_failure = str(error)
        if self._zygote is None or spec.mounts:
            return BwrapBodies(self._installation)
        return ZygoteBodies(self._zygote, self._installation.drops_root)

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
    limits, stats = sandbox.spec.limits, sandbox.held()
    if stats.private_bytes > limits.memory_bytes:
        held = f"{stats.private_bytes} of {limits.memory_bytes} bytes"
        sandbox.kill(EventKind.OOM, f"out of memory: its processes held {held}")
    elif stats.pids > limits.pids_max + PIDS_SLACK:
        sandbox.kill(EventKind.OOM, f"out of processes: {stats.pids} of {limits.pids_max}")
