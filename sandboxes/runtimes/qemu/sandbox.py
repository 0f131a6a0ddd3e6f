"""One clone: its machine, the link to its agent, its pauses, its end.

States: starting until the agent's hello, which answers `resume`: no call reaches a clone that was not
reseeded. Then live, running or paused, then gone for ever. Calls to a paused one wait; its own clocks
stand still meanwhile, so no call is charged for it.
"""

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from domain.sandbox import MemberKey
from sandboxes.commands import Command, Process
from sandboxes.files import FileRequest, FileResult
from sandboxes.ports import EventKind, ForkFailed, Mount, SandboxEvent, SandboxSpec, SandboxStats
from sandboxes.runtimes.guest_control import (
    ENTROPY_BYTES,
    AskStats,
    GuestStats,
    Place,
    Resume,
    SetClock,
    Trim,
)
from sandboxes.runtimes.guest_link import within
from sandboxes.runtimes.qemu.hardware import Hardware
from sandboxes.runtimes.qemu.machine import CLONE_WORDS, MIB
from sandboxes.runtimes.qemu.memory import page_out, stats_of
from sandboxes.runtimes.qemu.start import Boot, MachineLink, continue_from, start_machine
from sandboxes.runtimes.qemu.template import Template
from sandboxes.runtimes.qemu.vmm import MonitorError, Vmm
from sandboxes.runtimes.swap import has_swap
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    SandboxError,
    SandboxRequest,
    SandboxResult,
)

START_TIMEOUT_S: Final = 60.0
"""A clone answers in a fraction of a second; on a busy machine without virtualization in some."""

FILES_MAX: Final = 256
"""Open files of one process inside."""

PLACED_FILES_MAX: Final = 256
"""Files of a mount, which go in one by one."""

BALLOON_SLACK_BYTES: Final = 48 * MIB
"""Left to the guest as free memory: a balloon that takes all starves it."""

REPORT_S: Final = 3.0
"""A guest reports pages that became free within two seconds."""

BALLOON_S: Final = 10.0
POLL_S: Final = 0.1

DIED: Final = "its machine ended"


class QemuSandbox:
    """A sandbox of the `qemu` runtime. Made by `start`, which must run on the main thread."""

    def __init__(
        self, spec: SandboxSpec, template: Template, on_gone: Callable[["QemuSandbox"], None]
    ) -> None:
        self.spec = spec
        self.template = template
        self.wanted = False
        """Set before it is destroyed on purpose, so that its end is no event."""
        self.kind = EventKind.LOST
        self.cause = ""
        self._running = asyncio.Event()
        """Clear while it is paused."""
        self._running.set()
        self._vmm: Vmm | None = None
        self._link: MachineLink | None = None
        self._inode = 0
        self._on_gone = on_gone
        self._turn = asyncio.Lock()
        """One pause, resume or reclaim at a time."""

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        return self.spec.key

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._link is not None and self._link.is_busy

    @property
    def has_ended(self) -> bool:
        """Whether its machine is gone."""
        return self._vmm is None or self._vmm.ended.is_set()

    async def begin(self, hardware: Hardware, resume: Resume) -> None:
        """Start it and make it one of its own. Raises ForkFailed; nothing is left then."""
        state = self.template.state
        how = Boot(self.template.ram, words=CLONE_WORDS, state=state)
        cap = self.spec.limits.output_bytes_max
        started = await start_machine(hardware, self.template.machine, how, cap, self._link_lost)
        self._vmm, self._link, self._inode = started.vmm, started.link, started.ram_inode
        self._vmm.on_end = self._ended
        try:
            await continue_from(self._vmm, state)
            self._link.wake(resume)
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._link.ready
                for mount in self.spec.mounts:
                    await self._place(mount)
        except (SandboxError, MonitorError, TimeoutError, OSError) as error:
            why = self.cause or str(error) or "its agent did not answer"
            raise ForkFailed(f"a sandbox did not start: {why}") from error

    async def call(self, request: SandboxRequest) -> SandboxResult:
        """Run one request; timeouts are cut to the sandbox's limit. Raises SandboxError."""
        await self._running.wait()
        return await self._alive().call(within(request, self.spec.limits))

    async def start(self, command: Command) -> Process:
        """Start a program beside the calls. Raises SandboxError."""
        await self._running.wait()
        return await self._alive().start(command)

    async def files(self, request: FileRequest) -> FileResult:
        """Answer a question about files beside the calls. Raises SandboxError."""
        await self._running.wait()
        return await self._alive().ask(request)

    def stats(self) -> SandboxStats:
        """What it costs now; zeros once it is gone. Its process is one, whatever runs inside."""
        if self._vmm is None or self.has_ended:
            return SandboxStats(0, 0)
        return stats_of(self._vmm.pid, self._inode, 1)

    async def guest_stats(self) -> GuestStats:
        """What the guest says of its memory. Raises SandboxError."""
        told = await self._alive().ask(AskStats())
        assert isinstance(told, bytes)
        try:
            return GuestStats.of(told)
        except ValueError:
            self.kill(EventKind.LOST, "its guest agent broke the protocol: no figures")
            raise SandboxError("lost", self.cause) from None

    async def pause(self) -> None:
        """Stop its processor. Raises SandboxError when it is gone."""
        async with self._turn:
            link = self._alive()
            self._running.clear()
            link.hold()
            await self._ask("stop")

    async def resume(self) -> None:
        """Let it go on, with the host's time, before any new call. Raises SandboxError."""
        async with self._turn:
            link = self._alive()
            if self._running.is_set():
                return
            await self._ask("cont")
            link.go_on()
            await link.ask(SetClock())
            self._running.set()

    async def reclaim(self, wanted_bytes: int) -> int:
        """Take memory back: paused, by swapping it out; running, what the guest can spare.

        Returns the bytes by which its private memory, or the part of it in memory, shrank.
        """
        async with self._turn:
            self._alive()
            assert self._vmm is not None
            if not self._running.is_set():
                return page_out(self._vmm.pid, self._inode) if has_swap() else 0
            before = self.stats().private_bytes
            try:
                await self._alive().ask(Trim())
                await self._until_given(before - wanted_bytes, REPORT_S)
                short = wanted_bytes - (before - self.stats().private_bytes)
                if short > 0:
                    await self._press(short)
            except MonitorError as error:
                raise SandboxError("lost", str(error)) from error
            return max(0, before - self.stats().private_bytes)

    def kill(self, kind: EventKind, cause: str) -> None:
        """End it and everything inside; the first cause counts."""
        if not self.cause:
            self.kind, self.cause = kind, cause
        if self._vmm is not None:
            self._vmm.kill()
        if self._link is not None:
            self._link.fail(self.cause)
        self._running.set()

    async def gone(self) -> None:
        """Wait until its machine is reaped. Raises TimeoutError."""
        if self._vmm is not None:
            await self._vmm.gone()

    def event(self) -> SandboxEvent:
        """How it ended."""
        return SandboxEvent(self.key, self.kind, self.cause)

    def _alive(self) -> MachineLink:
        if self._link is None or self.has_ended:
            raise SandboxError("lost", self.cause or DIED)
        return self._link

    async def _ask(self, command: str, arguments: dict[str, object] | None = None) -> object:
        assert self._vmm is not None
        try:
            return await self._vmm.execute(command, arguments)
        except MonitorError as error:
            self.kill(EventKind.LOST, f"its machine did not obey: {error}")
            raise SandboxError("lost", self.cause) from error

    async def _press(self, wanted_bytes: int) -> None:
        """Blow the balloon up once and let it go: what it took is given back to the host."""
        guest = await self.guest_stats()
        take = min(wanted_bytes, guest.free_bytes - BALLOON_SLACK_BYTES)
        if take < MIB:
            return
        whole, before = self.template.machine.ram_bytes, self.stats().private_bytes
        await self._ask("balloon", {"value": whole - take})
        try:
            await self._until_given(before - wanted_bytes, BALLOON_S, balloon_bytes=whole - take)
        finally:
            await self._ask("balloon", {"value": whole})

    async def _until_given(
        self, target_bytes: int, limit_s: float, balloon_bytes: int | None = None
    ) -> None:
        """Wait until it holds no more than this, its balloon has its size, or the time is over."""
        for _ in range(int(limit_s / POLL_S)):
            if self.stats().private_bytes <= target_bytes:
                return
            if balloon_bytes is not None:
                told = await self._ask("query-balloon")
                if isinstance(told, dict) and told["actual"] <= balloon_bytes:
                    return
            await asyncio.sleep(POLL_S)

    async def _place(self, mount: Mount) -> None:
        """Copy a folder of the host into the guest. Raises SandboxError or OSError."""
        link = self._alive()
        files = [path for path in sorted(mount.source.rglob("*")) if _is_plain(path)]
        if len(files) > PLACED_FILES_MAX:
            raise SandboxError(
                "too_large", f"{mount.target} has more than {PLACED_FILES_MAX} files"
            )
        for path in files:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise SandboxError("too_large", f"{path.name} has more than {FILE_BYTES_MAX} bytes")
            target = f"{mount.target}/{path.relative_to(mount.source)}"
            await link.ask(Place(target, path.read_bytes()))

    def _ended(self) -> None:
        """Its machine was reaped: say why, by the guest kernel's own last words."""
        assert self._vmm is not None
        if not self.cause:
            self.kind, self.cause = _cause_of(self._vmm)
        if self._link is not None:
            self._link.fail(self.cause)
        self._running.set()
        self._on_gone(self)

    def _link_lost(self, cause: str) -> None:
        if not self.has_ended:
            self.kill(EventKind.LOST, cause)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _cause_of(vmm: Vmm) -> tuple[EventKind, str]:
    console = vmm.console
    if "Kernel panic" in console and "Out of memory" in console:
        return EventKind.OOM, "out of memory: the guest's kernel found no page"
    if "Kernel panic" in console:
        return EventKind.LOST, "the guest's kernel panicked"
    return (EventKind.EXITED if vmm.status == 0 else EventKind.LOST), vmm.last_words


async def start(
    spec: SandboxSpec,
    template: Template,
    hardware: Hardware,
    on_gone: Callable[[QemuSandbox], None],
) -> QemuSandbox:
    """Clone the template and wait for its agent. Raises ForkFailed; nothing is left then."""
    limits = spec.limits
    sandbox = QemuSandbox(spec, template, on_gone)
    resume = Resume(
        entropy=secrets.token_bytes(ENTROPY_BYTES),
        hostname=spec.hostname,
        seed=spec.seed,
        limits=(limits.memory_bytes, limits.pids_max, limits.disk_bytes, FILES_MAX),
    )
    try:
        await sandbox.begin(hardware, resume)
    except BaseException:
        sandbox.wanted = True
        sandbox.kill(EventKind.LOST, "its start was given up")
        await sandbox.gone()
        raise
    return sandbox
