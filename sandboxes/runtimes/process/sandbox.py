"""One `process` sandbox: a bubblewrap child, the link to its guest agent, its end.

States: starting until the guest's hello, live, then gone for ever. It is gone when bubblewrap was
reaped and process 1 inside has exited, which the kernel lets it do only after all others inside;
whoever caused that, `ended` is set and every call fails with `lost`.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from domain.sandbox import MemberKey
from sandboxes.ports import EventKind, ForkFailed, SandboxEvent, SandboxSpec, SandboxStats
from sandboxes.runtimes.guest_link import GuestLink
from sandboxes.runtimes.process.bwrap import Installation, Launch
from sandboxes.runtimes.process.usage import UsageReader
from venusrl.env.sandbox import (
    ExecRequest,
    PythonRequest,
    SandboxError,
    SandboxRequest,
    SandboxResult,
)

START_TIMEOUT_S: Final = 30.0
"""A start takes 15 ms; a machine that needs half a minute is not fit to run tools."""

REAP_TIMEOUT_S: Final = 10.0
"""The kernel ends a killed tree in milliseconds; waiting longer is for a machine that swaps."""

STDERR_BYTES_MAX: Final = 4096
"""Kept of what bubblewrap says about a start that failed."""


class ProcessSandbox:
    """A sandbox of the `process` runtime. Made by `start`, which must run on the main thread."""

    def __init__(
        self,
        spec: SandboxSpec,
        child: subprocess.Popen[bytes],
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
        self._child = child
        self._complaint = ""
        self._usage: UsageReader | None = None
        self._init: int | None = None
        """Pidfd of process 1 inside, once known."""
        self._pidfd = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        return self.spec.key

    def call(self, request: SandboxRequest) -> asyncio.Future[SandboxResult]:
        """Run one request; timeouts are cut to the sandbox's limit."""
        if isinstance(request, ExecRequest | PythonRequest):
            request = replace(request, timeout_s=self._bounded(request.timeout_s))
        return self.link.call(request)

    def stats(self) -> SandboxStats:
        """What it costs now; zeros once it is gone."""
        return self._usage.read() if self._usage else SandboxStats(0, 0)

    def kill(self, kind: EventKind, cause: str) -> None:
        """End it and everything inside; the first cause counts."""
        if not self.cause:
            self.kind, self.cause = kind, cause
        if not self.ended.is_set():
            self._child.send_signal(signal.SIGKILL)
        self.link.fail(self.cause)

    async def gone(self) -> None:
        """Wait until its processes are reaped. Raises TimeoutError."""
        async with asyncio.timeout(REAP_TIMEOUT_S):
            await self.ended.wait()

    def event(self) -> SandboxEvent:
        """How it ended."""
        return SandboxEvent(self.key, self.kind, self.cause)

    async def greeted(self, info: int) -> None:
        """Wait for the guest's hello, then open its /proc. Raises ForkFailed."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self.link.ready
            pid = json.loads(os.read(info, 4096))["child-pid"]
            self._init = os.pidfd_open(pid)
            self._usage = UsageReader(pid)
        except (SandboxError, TimeoutError, OSError, ValueError, KeyError) as error:
            self.kill(EventKind.LOST, "it did not start")
            await self.gone()
            raise ForkFailed(f"a sandbox did not start: {self._complaint or error}") from error
        finally:
            os.close(info)

    def _bounded(self, timeout_s: float) -> float:
        most = self.spec.limits.exec_timeout_s
        return timeout_s if 0.001 <= timeout_s <= most else most

    def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        code = self._child.poll()
        if code is None:
            return
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._complaint = _last_words(self._child)
        said = f": {self._complaint}" if self._complaint else ""
        self.cause = self.cause or f"its process ended with status {code}{said}"
        if self._init is None:
            self._emptied()
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            loop.add_reader(self._init, self._emptied)

    def _emptied(self) -> None:
        """Bubblewrap is reaped and nothing inside runs any more."""
        if self._init is not None:
            asyncio.get_running_loop().remove_reader(self._init)
            os.close(self._init)
            self._init = None
        if self._usage is not None:
            self._usage.close()
            self._usage = None
        self.ended.set()
        self.link.fail(self.cause)
        self._on_gone(self)

    def _link_lost(self, cause: str) -> None:
        if not self.ended.is_set():
            self.kill(EventKind.LOST, cause)


def _last_words(child: subprocess.Popen[bytes]) -> str:
    """What bubblewrap said, then its pipe is closed."""
    assert child.stderr is not None
    with child.stderr as stream:
        os.set_blocking(stream.fileno(), False)
        return (stream.read(STDERR_BYTES_MAX) or b"").decode(errors="replace").strip()


async def start(
    spec: SandboxSpec, installation: Installation, on_gone: Callable[[ProcessSandbox], None]
) -> ProcessSandbox:
    """Start one sandbox and wait for its agent. Raises ForkFailed; nothing is left then."""
    ours, theirs = socket.socketpair()
    info_r, info_w = os.pipe()
    try:
        child = _spawn(spec, installation, theirs, info_w)
    except (OSError, subprocess.SubprocessError, ForkFailed) as error:
        ours.close()
        os.close(info_r)
        raise ForkFailed(f"cannot start bubblewrap: {error}") from error
    finally:
        theirs.close()
        os.close(info_w)
    ours.setblocking(False)
    sandbox = ProcessSandbox(spec, child, on_gone)
    try:
        await asyncio.get_running_loop().create_connection(lambda: sandbox.link, sock=ours)
        await sandbox.greeted(info_r)
    except BaseException:
        sandbox.wanted = True
        sandbox.kill(EventKind.LOST, "its start was given up")
        await sandbox.gone()
        raise
    return sandbox


def _spawn(
    spec: SandboxSpec, installation: Installation, agent_socket: socket.socket, info_fd: int
) -> subprocess.Popen[bytes]:
    launch = Launch()
    try:
        installation.describe(launch, spec, info_fd)
        return subprocess.Popen(
            installation.command(launch),
            stdin=agent_socket.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=installation.passed(launch, info_fd),
            env=installation.variables,
        )
    finally:
        launch.close()
