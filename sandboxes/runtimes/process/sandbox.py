"""One `process` sandbox: its processes, the link to its guest agent, its end.

States: starting until the guest's hello, live, paused and live again, then gone for ever. It is gone
when nothing inside runs any more; whoever caused that, `ended` is set and every call fails with `lost`.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final, Protocol

from domain.sandbox import MemberKey
from sandboxes.commands import Command, Process
from sandboxes.files import FileRequest, FileResult
from sandboxes.ports import EventKind, ForkFailed, SandboxEvent, SandboxSpec, SandboxStats
from sandboxes.runtimes.guest_link import GuestLink, within
from sandboxes.runtimes.process import page_out, pausing
from sandboxes.runtimes.process.bodies import Body
from sandboxes.runtimes.process.inside import Inside
from sandboxes.runtimes.process.usage import UsageReader
from sandboxes.runtimes.swap import has_swap
from venusrl.env.sandbox import SandboxError, SandboxRequest, SandboxResult

START_TIMEOUT_S: Final = 30.0
"""A start takes 15 ms; a machine that needs half a minute is not fit to run tools."""

REAP_TIMEOUT_S: Final = 10.0
"""The kernel ends a killed tree in milliseconds; waiting longer is for a machine that swaps."""

NOTHING: Final = SandboxStats(0, 0)


class Bodies(Protocol):
    """Makes the processes of sandboxes."""

    @property
    def warm_bytes(self) -> int:
        """Anonymous bytes that every member maps from the start and shares with all others."""
        ...

    async def make(self, spec: SandboxSpec, agent_socket: socket.socket) -> Body:
        """Start one whose agent speaks over this socket. Raises ForkFailed, OSError."""
        ...


class ProcessSandbox:
    """A sandbox of the `process` runtime. Made by `start`, which must run on the main thread."""

    def __init__(
        self,
        spec: SandboxSpec,
        body: Body,
        warm_bytes: int,
        on_gone: Callable[["ProcessSandbox"], None],
    ) -> None:
        self.spec = spec
        self.link = GuestLink(spec.limits.output_bytes_max, self._link_lost)
        self.ended = asyncio.Event()
        self.wanted = False
        """Set before it is destroyed on purpose, so that its end is no event."""
        self.kind = EventKind.EXITED
        self.cause = ""
        self._on_gone = on_gone
        self._body = body
        self._warm_bytes = warm_bytes
        self._complaint = ""
        self._inside: Inside | None = None
        self._usage: UsageReader | None = None
        self._moving = asyncio.Lock()
        """Pauses and resumes come one after the other."""
        self._stopped_before: frozenset[str] | None = None
        """While paused: the processes that had stopped by themselves."""
        body.follow(self._over)

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        return self.spec.key

    @property
    def has_ended(self) -> bool:
        """Whether nothing inside runs any more."""
        return self.ended.is_set()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self.link.is_busy

    @property
    def is_paused(self) -> bool:
        """Whether its processes stand still."""
        return self._stopped_before is not None

    def call(self, request: SandboxRequest) -> asyncio.Future[SandboxResult]:
        """Run one request; timeouts are cut to the sandbox's limit."""
        return self.link.call(within(request, self.spec.limits))

    def start(self, command: Command) -> asyncio.Future[Process]:
        """Start a program beside the calls."""
        return self.link.start(command)

    def files(self, request: FileRequest) -> asyncio.Future[FileResult]:
        """Answer a question about files beside the calls."""
        return self.link.ask(request)

    def stats(self) -> SandboxStats:
        """What it costs now; zeros once it is gone."""
        return self._usage.measured() if self._usage else NOTHING

    def held(self) -> SandboxStats:
        """What its limits are held against: what it shares with the zygote counts too."""
        return self._usage.held() if self._usage else NOTHING

    def held_once(self) -> int:
        """Private bytes, a page that several of its processes map counted once; dearer than `held`."""
        return self._usage.held_once() if self._usage else 0

    async def pause(self) -> None:
        """Stop all its processes. Raises SandboxError; then it runs on."""
        async with self._moving:
            if self.is_paused:
                return
            inside = self._here()
            self.link.hold()
            try:
                stopped = await pausing.stop(inside)
                self._here()
                self._stopped_before = stopped
            finally:
                if not self.is_paused:
                    self.link.go_on()

    async def resume(self) -> None:
        """Let its processes go on. Raises SandboxError."""
        async with self._moving:
            inside = self._here()
            if self._stopped_before is not None:
                pausing.go_on(inside, self._stopped_before)
                self._stopped_before = None
                self.link.go_on()

    async def reclaim(self, bytes_: int) -> int:
        """Move about so many bytes of its memory to swap; how many went. Raises SandboxError."""
        async with self._moving:
            inside = self._here()
            if bytes_ <= 0 or not has_swap():
                return 0
            before = inside.resident_bytes()
            await asyncio.to_thread(page_out.page_out, inside.pid, bytes_)
            self._here()
            return max(0, before - inside.resident_bytes())

    def kill(self, kind: EventKind, cause: str) -> None:
        """End it and everything inside; the first cause counts."""
        if not self.cause:
            self.kind, self.cause = kind, cause
        if not self.ended.is_set():
            self._body.kill()
        self.link.fail(self.cause)

    async def gone(self) -> None:
        """Wait until its processes are reaped. Raises TimeoutError."""
        async with asyncio.timeout(REAP_TIMEOUT_S):
            await self.ended.wait()

    def event(self) -> SandboxEvent:
        """How it ended."""
        return SandboxEvent(self.key, self.kind, self.cause)

    async def greeted(self) -> None:
        """Wait for the guest's hello, then open its /proc. Raises ForkFailed."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self.link.ready
            self._inside = Inside(self._body.identify())
            self._usage = UsageReader(self._inside, self._warm_bytes)
        except (SandboxError, TimeoutError, OSError, ValueError) as error:
            self.kill(EventKind.LOST, "it did not start")
            await self.gone()
            raise ForkFailed(f"a sandbox did not start: {self._complaint or error}") from error

    def _here(self) -> Inside:
        if self._inside is None or self.ended.is_set():
            raise SandboxError("lost", self.cause or "it has ended")
        return self._inside

    def _over(self, how: str, said: str) -> None:
        """Nothing inside runs any more."""
        self._complaint = said
        self.cause = self.cause or (f"{how}: {said}" if said else how)
        if self._inside is not None:
            self._inside.close()
            self._inside = self._usage = None
        self.ended.set()
        self.link.fail(self.cause)
        self._on_gone(self)

    def _link_lost(self, cause: str) -> None:
        if not self.ended.is_set():
            self.kill(EventKind.LOST, cause)


async def start(
    spec: SandboxSpec, bodies: Bodies, on_gone: Callable[[ProcessSandbox], None]
) -> ProcessSandbox:
    """Start one sandbox and wait for its agent. Raises ForkFailed; nothing is left then."""
    ours, theirs = socket.socketpair()
    try:
        body = await bodies.make(spec, theirs)
    except OSError as error:
        ours.close()
        raise ForkFailed(f"cannot start a sandbox: {error}") from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    sandbox = ProcessSandbox(spec, body, bodies.warm_bytes, on_gone)
    try:
        await asyncio.get_running_loop().create_connection(lambda: sandbox.link, sock=ours)
        await sandbox.greeted()
    except BaseException:
        sandbox.wanted = True
        sandbox.kill(EventKind.LOST, "its start was given up")
        await sandbox.gone()
        raise
    return sandbox
