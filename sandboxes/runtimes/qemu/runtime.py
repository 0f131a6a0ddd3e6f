"""The `qemu` runtime: clones machines of a template, watches their memory, destroys them.

All starts happen on the event loop's thread, which must be the process's main thread: a machine
dies with the thread that started it.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from domain.sandbox import MemberKey, SandboxLimits
from infra.logging import get_logger
from infra.sharing import WorkCancelled, shared
from sandboxes.ports import Capabilities, EventKind, ForkFailed, Isolation, Listener, SandboxSpec
from sandboxes.runtimes.qemu.accel import Verdict, choose
from sandboxes.runtimes.qemu.hardware import Hardware, find_hardware
from sandboxes.runtimes.qemu.machine import MIB, Machine, ram_bytes_for
from sandboxes.runtimes.qemu.sandbox import QemuSandbox, start
from sandboxes.runtimes.qemu.template import Template, TemplateStore
from sandboxes.runtimes.swap import has_swap
from venusrl.env.sandbox import SandboxError

STARTS_MAX: Final = 4
"""Starts in flight; where instructions are emulated, more would only wait for the same cores."""

BUSY_POLL_S: Final = 0.1
"""How often a machine that runs a request is measured; its own kernel holds each process's limit."""

IDLE_POLLS: Final = 10
"""An idle machine is measured every so many polls; only its background processes can grow."""

KERNEL_SLACK_BYTES: Final = 16 * MIB
"""What the guest's kernel may touch for a sandbox beyond the ceilings of memory and disk."""


class QemuRuntime:
    """Sandboxes of this machine as clones of frozen machines."""

    def __init__(self, templates: Path, tenant: str = "") -> None:
        """`templates` is a folder that may outlive this runtime and be shared with others."""
        assert threading.current_thread() is threading.main_thread()
        self.verdict: Verdict | None = None
        """How machines run here; known after the first fork or `prepare`."""
        self._store = TemplateStore(templates, tenant)
        self._hardware: Hardware | None = None
        self._prepared = asyncio.Lock()
        self._starts = asyncio.Semaphore(STARTS_MAX)
        self._members: dict[MemberKey, asyncio.Task[QemuSandbox]] = {}
        self._live: dict[MemberKey, QemuSandbox] = {}
        self._listeners: list[Listener] = []
        self._watch: asyncio.Task[None] | None = None

    def capabilities(self) -> Capabilities:
        """Machines whose memory is copied on write; a running clone cannot be forked yet."""
        return Capabilities(
            isolation=Isolation.VM,
            cow_memory=True,
            live_fork=False,
            balloon=True,
            page_out=has_swap(),
            checkpoint=False,
            network=False,
            rootless=True,
            pause=True,
        )

    def listen(self, listener: Listener) -> None:
        """Tell this listener of ends from now on."""
        self._listeners.append(listener)

    async def prepare(self, limits: SandboxLimits) -> Template:
        """The template that sandboxes of these limits are cloned from. Raises ForkFailed."""
        async with self._prepared:
            if self._hardware is None:
                hardware = await asyncio.to_thread(find_hardware)
                self.verdict = await choose(hardware)
                get_logger().info("qemu.probed", verdict=str(self.verdict))
                self._hardware = hardware
        assert self.verdict is not None
        ram_bytes = ram_bytes_for(limits.memory_bytes, limits.disk_bytes)
        machine = Machine(self._hardware.tools.qemu, self.verdict.accel, ram_bytes)
        return await self._store.get(self._hardware, machine)

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[QemuSandbox, ...]:
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

    def get(self, key: MemberKey) -> QemuSandbox | None:
        """The live sandbox of a key."""
        return self._live.get(key)

    def keys(self) -> tuple[MemberKey, ...]:
        """Keys of all live sandboxes."""
        return tuple(self._live)

    async def pause(self, key: MemberKey) -> None:
        """Stop its processor. Raises SandboxError."""
        await self._known(key).pause()

    async def resume(self, key: MemberKey) -> None:
        """Let it go on, with the right time. Raises SandboxError."""
        await self._known(key).resume()

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Take memory back: paused, to swap; running, what the guest can spare. Raises SandboxError."""
        return await self._known(key).reclaim(bytes_)

    async def destroy(self, key: MemberKey) -> None:
        """End a sandbox and its machine; returns when it is gone."""
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
        """Destroy all sandboxes; templates stay."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await asyncio.gather(*(self.destroy(key) for key in tuple(self._members)))

    def _known(self, key: MemberKey) -> QemuSandbox:
        sandbox = self._live.get(key)
        if sandbox is None:
            raise SandboxError("lost", "there is no such sandbox")
        return sandbox

    def _member(self, spec: SandboxSpec) -> asyncio.Task[QemuSandbox]:
        task = self._members.get(spec.key)
        if task is None:
            task = self._members[spec.key] = asyncio.create_task(self._start(spec))
        return task

    async def _start(self, spec: SandboxSpec) -> QemuSandbox:
        template = await self.prepare(spec.limits)
        assert self._hardware is not None
        async with self._starts:
            sandbox = await start(spec, template, self._hardware, self._gone)
        if sandbox.ended:
            raise ForkFailed(f"a sandbox ended as it started: {sandbox.cause}")
        self._live[spec.key] = sandbox
        return sandbox

    def _gone(self, sandbox: QemuSandbox) -> None:
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
                    _check(sandbox)


def _check(sandbox: QemuSandbox) -> None:
    limits, held = sandbox.spec.limits, sandbox.stats().private_bytes
    most = limits.memory_bytes + limits.disk_bytes + KERNEL_SLACK_BYTES
    if held > most:
        sandbox.kill(EventKind.OOM, f"out of memory: its machine held {held} of {most} bytes")
