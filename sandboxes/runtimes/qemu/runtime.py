"""The `qemu` runtime: clones machines of a template, watches their memory, destroys them.

All starts happen on the event loop's thread, which must be the process's main thread: a machine
dies with the thread that started it.
"""

import asyncio
from pathlib import Path
from typing import Final

from domain.sandbox import SandboxLimits
from infra.logging import get_logger
from sandboxes.ports import Capabilities, Isolation, SandboxSpec
from sandboxes.runtimes.keyed import KeyedRuntime
from sandboxes.runtimes.qemu.accel import Verdict, choose
from sandboxes.runtimes.qemu.hardware import Hardware, find_hardware
from sandboxes.runtimes.qemu.machine import MIB, Machine, ram_bytes_for
from sandboxes.runtimes.qemu.sandbox import QemuSandbox, start
from sandboxes.runtimes.qemu.template import Template, TemplateStore
from sandboxes.runtimes.swap import has_swap

STARTS_MAX: Final = 4
"""Starts in flight; where instructions are emulated, more would only wait for the same cores."""

KERNEL_SLACK_BYTES: Final = 16 * MIB
"""What the guest's kernel may touch for a sandbox beyond the ceilings of memory and disk."""


class QemuRuntime(KeyedRuntime[QemuSandbox]):
    """Sandboxes of this machine as clones of frozen machines."""

    def __init__(self, templates: Path, tenant: str = "") -> None:
        """`templates` is a folder that may outlive this runtime and be shared with others."""
        super().__init__()
        self.verdict: Verdict | None = None
        """How machines run here; known after the first fork or `prepare`."""
        self._store = TemplateStore(templates, tenant)
        self._hardware: Hardware | None = None
        self._prepared = asyncio.Lock()
        self._starts = asyncio.Semaphore(STARTS_MAX)

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

    async def _make(self, spec: SandboxSpec) -> QemuSandbox:
        template = await self.prepare(spec.limits)
        assert self._hardware is not None
        async with self._starts:
            return await start(spec, template, self._hardware, self._gone)

    def _excess(self, sandbox: QemuSandbox) -> str | None:
        limits, held = sandbox.spec.limits, sandbox.stats().private_bytes
        most = limits.memory_bytes + limits.disk_bytes + KERNEL_SLACK_BYTES
        if held <= most:
            return None
        return f"out of memory: its machine held {held} of {most} bytes"
