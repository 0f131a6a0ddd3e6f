"""What the host holds of a sandbox's processes: how to end them, and how to know that they ended.

A body is over when nothing of it runs any more. Process 1 inside exits only after all others inside,
so its pidfd tells; a bubblewrap child is reaped before.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from sandboxes.ports import ForkFailed, SandboxSpec
from sandboxes.runtimes.process.bwrap import Installation, Launch

STDERR_BYTES_MAX: Final = 4096
"""Kept of what a start that failed says."""

OnEnd = Callable[[str, str], None]
"""Told once, when it is over: how it ended, and what a start that failed said."""


class Body(Protocol):
    """The processes of one sandbox."""

    def follow(self, on_end: OnEnd) -> None:
        """Watch it on the running loop."""
        ...

    def kill(self) -> None:
        """End it; `on_end` tells when that is done. Allowed at any time."""
        ...

    def identify(self) -> int:
        """The host's number of process 1, once its agent has said hello. Raises OSError, ValueError."""
        ...


class BwrapBody:
    """A bubblewrap child and the process 1 that it made."""

    def __init__(self, child: subprocess.Popen[bytes], info_fd: int) -> None:
        """`info_fd` is where bubblewrap writes the number of process 1; closed by us."""
        self._child = child
        self._info: int | None = info_fd
        self._pidfd = os.pidfd_open(child.pid)
        self._init: int | None = None
        self._said = ""
        self._on_end: OnEnd | None = None

    def follow(self, on_end: OnEnd) -> None:
        """Watch it on the running loop."""
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def kill(self) -> None:
        """End it."""
        self._child.send_signal(signal.SIGKILL)

    def identify(self) -> int:
        """The number of process 1, from bubblewrap."""
        if self._info is None:
            raise ValueError("it has ended")
        try:
            pid = json.loads(os.read(self._info, STDERR_BYTES_MAX))["child-pid"]
        except KeyError as error:
            raise ValueError("bubblewrap names no child") from error
        finally:
            os.close(self._info)
            self._info = None
        self._init = os.pidfd_open(pid)
        return int(pid)

    def _reap(self) -> None:
        if self._child.poll() is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._info is not None:
            os.close(self._info)
            self._info = None
        assert self._child.stderr is not None
        self._said = _last_words(self._child.stderr.fileno())
        self._child.stderr.close()
        if self._init is None:
            self._over()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._init, signal.SIGKILL)
        loop.add_reader(self._init, self._over)

    def _over(self) -> None:
        if self._init is not None:
            asyncio.get_running_loop().remove_reader(self._init)
            os.close(self._init)
            self._init = None
        assert self._on_end is not None
        self._on_end(f"its process ended with status {self._child.returncode}", self._said)


class BwrapBodies:
    """Makes bodies by starting bubblewrap; slower than the zygote, and able to mount folders."""

    warm_bytes: Final = 0

    def __init__(self, installation: Installation) -> None:
        self._installation = installation

    async def make(self, spec: SandboxSpec, agent_socket: socket.socket) -> Body:
        """Start one. Raises ForkFailed, OSError."""
        return self._spawn(spec, agent_socket)  # the loop pays one fork

    def _spawn(self, spec: SandboxSpec, agent_socket: socket.socket) -> Body:
        info_r, info_w = os.pipe()
        launch = Launch()
        try:
            self._installation.describe(launch, spec, info_w)
            child = subprocess.Popen(
                self._installation.command(launch),
                stdin=agent_socket.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=self._installation.passed(launch, info_w),
                env=self._installation.variables,
            )
        except BaseException as error:
            os.close(info_r)
            if isinstance(error, OSError | subprocess.SubprocessError):
                raise ForkFailed(f"cannot start bubblewrap: {error}") from error
            raise
        finally:
            launch.close()
            os.close(info_w)
        return BwrapBody(child, info_r)


class ForkedBody:
    """A fork of the zygote: process 1 itself, reaped by the kernel."""

    def __init__(self, pidfd: int, complaint_fd: int) -> None:
        """Both descriptors are closed by us."""
        self._pidfd = pidfd
        self._complaint: int | None = complaint_fd
        self._is_over = False
        self._on_end: OnEnd | None = None

    def follow(self, on_end: OnEnd) -> None:
        """Watch it on the running loop."""
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._pidfd, self._over)

    def kill(self) -> None:
        """End it."""
        if not self._is_over:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def identify(self) -> int:
        """The number that its pidfd stands for here."""
        if self._is_over:
            raise ValueError("it has ended")  # its descriptor may be another's by now
        if self._complaint is not None:  # it is up: nothing is left to complain of
            os.close(self._complaint)
            self._complaint = None
        return pid_of(self._pidfd)

    def _over(self) -> None:
        self._is_over = True
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        said = ""
        if self._complaint is not None:
            said = _last_words(self._complaint)
            os.close(self._complaint)
            self._complaint = None
        assert self._on_end is not None
        self._on_end("its process 1 ended", said)


def pid_of(pidfd: int) -> int:
    """This machine's number of a process. Raises ValueError when it has ended."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid" and int(value) > 0:
            return int(value)
    raise ValueError("the process has ended")


def _last_words(fd: int) -> str:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, STDERR_BYTES_MAX).decode(errors="replace").strip()
    except BlockingIOError:
        return ""
