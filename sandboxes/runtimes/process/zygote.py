"""The host's side of the zygote: starts it, asks it for members, notices its end.

One process for a runtime, forked from nothing of ours but the guest's interpreter. Requests are
answered in order. When it ends its members end with it; the runtime then starts another.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import sandboxes.guest
from sandboxes.ports import ForkFailed, SandboxSpec
from sandboxes.runtimes.process.bodies import Body, ForkedBody, pid_of
from sandboxes.runtimes.process.bwrap import (
    ETC,
    GUEST_HOME,
    GUEST_UID,
    ROOT_LINKS,
    SHM_BYTES,
    Installation,
    caps,
    fresh_uid,
    variables,
)
from sandboxes.runtimes.process.usage import anonymous_bytes

T = TypeVar("T")

START_TIMEOUT_S: Final = 30.0
"""An interpreter with some modules starts in tenths of a second; a busy machine takes longer."""

END_TIMEOUT_S: Final = 10.0

ANSWER_BYTES_MAX: Final = 1 << 14

WARM_MODULES: Final = (
    *("ast", "base64", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses"),
    *("datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io"),
    *("itertools", "json", "logging", "math", "operator", "pathlib", "random", "re", "shutil"),
    *("statistics", "string", "subprocess", "tempfile", "textwrap", "threading", "traceback"),
    *("typing", "unittest", "uuid"),
)
"""What code of tools imports most: loaded once, shared by all members."""

PLAN: Final = "plan.json"

_START: Final = (
    "import sys; sys.path.insert(0, 'lib'); "
    f"from sandboxes.guest.zygote import main; main({PLAN!r})"
)
"""Relative to the zygote's folder: members inherit the command line and can read it."""


class Zygote:
    """A running zygote. Made by `launch`."""

    def __init__(self, child: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.is_alive = True
        self.warm_bytes = 0
        """What it held before its first fork: a member's pages beyond these are its own."""
        self._child = child
        self._control = control
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(child.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._reap)
        self.ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(control, self._hear)

    async def fork(self, spec: SandboxSpec, uid: int, fds: Sequence[int]) -> int:
        """One member: its pidfd. `fds`: the agent's socket, a pipe. Raises ForkFailed."""
        if not self.is_alive:
            raise ForkFailed("the zygote ended")
        member = {
            "hostname": spec.hostname,
            "uid": uid,
            "inside_uid": GUEST_UID,
            "home": GUEST_HOME,
            "disk_bytes": spec.limits.disk_bytes,
            "shm_bytes": SHM_BYTES,
            "variables": variables(spec),
            "caps": caps(spec),
        }
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._control, [json.dumps(member).encode()], list(fds))
        except OSError as error:
            raise ForkFailed(f"the zygote takes no request: {error}") from error
        self._waiting.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _end(
                    [answer.result()]
                )  # it was born in the moment in which nobody wanted it any more
            raise

    async def close(self) -> None:
        """End it, and with it all members that are left."""
        if self.is_alive:
            self._child.send_signal(signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await self._ended.wait()

    def _hear(self) -> None:
        try:
            text, fds, _, _ = socket.recv_fds(self._control, ANSWER_BYTES_MAX, 1)
        except BlockingIOError:
            return
        except OSError:
            text, fds = b"", []
        if not text:
            asyncio.get_running_loop().remove_reader(self._control)
            return
        said = json.loads(text)
        if not self.ready.done():
            self._greet(said, fds)
            return
        answer = self._waiting.popleft()
        if answer.done():
            _end(fds)
        elif "error" in said:
            answer.set_exception(ForkFailed(f"the zygote could not fork: {said['error']}"))
        else:
            answer.set_result(fds[0])

    def _greet(self, said: dict[str, object], fds: Sequence[int]) -> None:
        if "error" in said:
            self.ready.set_exception(ForkFailed(f"no zygote here: {said['error']}"))
        else:
            self.warm_bytes = anonymous_bytes(pid_of(fds[0]))
            os.close(fds[0])
            self.ready.set_result(None)

    def _reap(self) -> None:
        if self._child.poll() is None:
            return
        self._hear()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        loop.remove_reader(self._control)
        os.close(self._pidfd)
        self._control.close()
        self.is_alive = False
        self._ended.set()
        _fail(self.ready)
        while self._waiting:
            _fail(self._waiting.popleft())


class ZygoteBodies:
    """Makes bodies by forking the zygote; a member's uid is its own where we are root."""

    def __init__(self, zygote: Zygote, drops_root: bool) -> None:
        self.zygote = zygote
        self._drops_root = drops_root

    @property
    def warm_bytes(self) -> int:
        """The zygote's."""
        return self.zygote.warm_bytes

    async def make(self, spec: SandboxSpec, agent_socket: socket.socket) -> Body:
        """Fork one. Raises ForkFailed, OSError."""
        complaint, theirs = os.pipe()
        try:
            uid = fresh_uid() if self._drops_root else 0
            fds = (agent_socket.fileno(), theirs)
            pidfd = await self.zygote.fork(spec, uid, fds)
        except BaseException:
            os.close(complaint)
            raise
        finally:
            os.close(theirs)
        return ForkedBody(pidfd, complaint)


async def launch(installation: Installation, warm: Sequence[str]) -> Zygote:
    """Start a zygote and wait until it is warm. Raises ForkFailed; nothing is left then."""
    if os.getuid() == 0 and not installation.drops_root:
        raise ForkFailed("no zygote here: sandboxes would keep root's uid")
    folder = installation.folder / "zygote"
    try:
        _write_plan(installation, folder, warm)
        child, control = _spawn(installation, folder)
    except (OSError, subprocess.SubprocessError) as error:
        raise ForkFailed(f"no zygote here: {error}") from error
    zygote = Zygote(child, control)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await zygote.ready
    except TimeoutError:
        await zygote.close()
        raise ForkFailed("no zygote here: it did not start in time") from None
    except BaseException:
        await zygote.close()
        raise
    return zygote


def _write_plan(installation: Installation, folder: Path, warm: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "root").mkdir(parents=True)
    package = folder / "lib" / "sandboxes" / "guest"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    for source in Path(sandboxes.guest.__path__[0]).glob("*.py"):
        (package / source.name).write_bytes(source.read_bytes())
    plan = {
        "parent": os.getpid(),
        "folder": str(folder / "root"),
        "user_namespace": os.getuid() != 0,
        "filter": installation.filter_program.hex(),
        "warm": list(warm),
        "files": ETC,
        **_system(installation.interpreter.prefix),
    }
    (folder / PLAN).write_text(json.dumps(plan))


def _system(prefix: Path | None) -> dict[str, object]:
    binds, links = [("/usr", "/usr")], {"/tmp": f"{GUEST_HOME}/.tmp"}
    if os.path.isdir("/etc/alternatives"):
        binds.append(("/etc/alternatives", "/etc/alternatives"))
    if prefix is not None:
        binds.append((str(prefix), str(prefix)))
    for name in ROOT_LINKS:
        path = Path("/") / name
        if path.is_symlink():
            links[str(path)] = os.readlink(path)
        elif path.is_dir():
            binds.append((str(path), str(path)))
    return {"binds": binds, "links": links}


def _spawn(
    installation: Installation, folder: Path
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [installation.interpreter.path, "-I", "-S", "-X", "utf8", "-c", _START]
    try:
        child = subprocess.Popen(
            words,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd=folder,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return child, ours


def _fail(answer: asyncio.Future[T]) -> None:
    if not answer.done():
        answer.set_exception(ForkFailed("the zygote ended"))
        answer.exception()  # nobody may be waiting any more


def _end(fds: Sequence[int]) -> None:
    """A member that nobody waits for any more."""
    for pidfd in fds:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
