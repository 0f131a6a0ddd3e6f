"""The `process` runtime: forks sandboxes, watches their memory, destroys whole trees.

Members come from the zygote. Bubblewrap starts those that want a folder of the host mounted, and all
of them where no zygote can be had; `zygote_failure` says why not.

All starts happen on the event loop's thread, which must be the process's main thread: a sandbox
dies with the thread that started it. A start costs the loop one fork; the rest is awaited.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandboxes.ports import Capabilities, ForkFailed, Isolation, SandboxSpec
from sandboxes.runtimes.keyed import KeyedRuntime
from sandboxes.runtimes.process import seccomp
from sandboxes.runtimes.process.bodies import BwrapBodies
from sandboxes.runtimes.process.bwrap import Installation
from sandboxes.runtimes.process.sandbox import Bodies, ProcessSandbox, start
from sandboxes.runtimes.process.zygote import WARM_MODULES, Zygote, ZygoteBodies, launch
from sandboxes.runtimes.swap import has_swap

STARTS_MAX: Final = 8
"""Starts in flight; more of them would only wait for the same cores."""

PIDS_SLACK: Final = 8
"""The kernel's own count includes threads and is exact; this check is for machines where it cannot
count, and must not fire before it."""


class ProcessRuntime(KeyedRuntime[ProcessSandbox]):
    """Sandboxes of this machine that share its kernel."""

    def __init__(self, scratch: Path, warm: Sequence[str] | None = WARM_MODULES) -> None:
        """`scratch` is a folder of its own for the files that all sandboxes share.

        `warm` names the modules that the zygote imports; None: no zygote.
        """
        super().__init__()
        self.zygote_failure: str | None = "not wanted" if warm is None else None
        """Why members do not come from a zygote here; None while they do."""
        self._scratch = scratch
        self._warm = tuple(warm or ())
        self._zygote: Zygote | None = None
        self._zygote_starts = asyncio.Lock()
        self._installation: Installation | None = None
        self._starts = asyncio.Semaphore(STARTS_MAX)

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

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[ProcessSandbox, ...]:
        """One sandbox for each member, in order, existing ones included. Raises ForkFailed."""
        self._installation = self._installation or Installation(self._scratch)
        return await super().fork(members)

    async def close(self) -> None:
        """Destroy everything."""
        await super().close()
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

    async def _make(self, spec: SandboxSpec) -> ProcessSandbox:
        async with self._starts:
            return await start(spec, await self._bodies(spec), self._gone)

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

    def _excess(self, sandbox: ProcessSandbox) -> str | None:
        limits, stats = sandbox.spec.limits, sandbox.held()
        most = limits.memory_bytes
        if stats.private_bytes > most and (held := sandbox.held_once()) > most:
            return f"out of memory: its processes held {held} of {most} bytes"
        if stats.pids > limits.pids_max + PIDS_SLACK:
            return f"out of processes: {stats.pids} of {limits.pids_max}"
        return None
