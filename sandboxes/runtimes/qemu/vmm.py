"""One QEMU process: how it starts, what it says, its monitor, how it ends.

It must be started on the main thread: the process dies with the thread that started it.
"""

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import Final

from qemu.qmp import QMPClient, QMPError

TAIL_BYTES: Final = 4096
"""Kept of console and complaints: the last words name the cause of an end."""

REAP_TIMEOUT_S: Final = 10.0
"""The kernel ends a killed process in milliseconds; waiting longer is for a machine that swaps."""

MONITOR_TIMEOUT_S: Final = 20.0
"""The monitor answers in milliseconds, also while the guest computes."""


class MonitorError(RuntimeError):
    """QEMU refused a command, or is gone."""


class Tail:
    """The last bytes of a pipe, read as they come."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = b""
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self.read)

    @property
    def text(self) -> str:
        """What was said last."""
        return self._kept.decode(errors="replace").strip()

    def read(self) -> bool:
        """Take one chunk; whether there may be more."""
        try:
            chunk = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._fd)
        self._kept = (self._kept + chunk)[-TAIL_BYTES:]
        return bool(chunk)

    def finish(self) -> None:
        """Read what is left of a process that has ended; it cannot be more than a pipe holds."""
        while self.read():
            pass
        asyncio.get_running_loop().remove_reader(self._fd)


class Vmm:
    """A running QEMU. `on_end` is called once, after it was reaped."""

    def __init__(self, command: Sequence[str], fds: Sequence[int], monitor: socket.socket) -> None:
        """`fds` go to the child; `monitor` is our end of its monitor. Raises OSError."""
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=fds,
            env={},
        )
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self.pid = self._child.pid
        self.ended = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None
        self._monitor_end = monitor
        self._client: QMPClient | None = None
        self._farewell: asyncio.Task[None] | None = None
        self._console = Tail(self._child.stdout.fileno())
        self._complaints = Tail(self._child.stderr.fileno())
        self._pidfd = os.pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def console(self) -> str:
        """What the guest's kernel said last."""
        return self._console.text

    @property
    def last_words(self) -> str:
        """How QEMU ended, by its status and what it complained of."""
        code = self._child.returncode
        said = self._complaints.text
        how = f"signal {-code}" if code is not None and code < 0 else f"status {code}"
        return f"its machine ended with {how}" + (f": {said[-300:]}" if said else "")

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._child.returncode

    async def execute(self, command: str, arguments: dict[str, object] | None = None) -> object:
        """Ask the monitor. Raises MonitorError."""
        try:
            async with asyncio.timeout(MONITOR_TIMEOUT_S):
                client = await self._connected()
                return await client.execute(command, arguments)
        except (QMPError, OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise MonitorError(f"{command}: {error or type(error).__name__}") from error

    async def lend(self, fd: int, name: str) -> None:
        """Give QEMU a descriptor under a name. Raises MonitorError."""
        try:
            client = await self._connected()
            client.send_fd_scm(fd)
        except (QMPError, OSError) as error:
            raise MonitorError(f"cannot pass a file: {error}") from error
        await self.execute("getfd", {"fdname": name})

    def kill(self) -> None:
        """End it at once."""
        if not self.ended.is_set():
            self._child.kill()

    async def gone(self) -> None:
        """Wait until it is reaped. Raises TimeoutError."""
        async with asyncio.timeout(REAP_TIMEOUT_S):
            await self.ended.wait()
        if self._farewell is not None:
            await self._farewell

    async def _connected(self) -> QMPClient:
        if self._client is None:
            client = QMPClient("venus")
            client.logger.disabled = True
            await client.connect(self._monitor_end)
            self._client = client
        return self._client

    def _reap(self) -> None:
        if self._child.poll() is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._console.finish()
        self._complaints.finish()
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()
        if self._client is None:
            self._monitor_end.close()
        else:
            self._farewell = asyncio.create_task(_disconnect(self._client))
        self.ended.set()
        self.on_end()


async def _disconnect(client: QMPClient) -> None:
    """Close our end and take note of how it broke: the client keeps that until it is asked."""
    try:
        await client.disconnect()
    except (QMPError, OSError, EOFError):
        pass  # its other end is gone, which is what made us call
