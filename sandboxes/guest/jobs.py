"""What the reference agent runs: programs, and sources in the warm interpreter.

A job sends what it writes within its credit, which the host gives as its reader reads: without credit
a pipe is not read, so the writer waits. Output beyond a job's cap is counted and dropped instead.
Guest code: standard library only, Python 3.9 on.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from sandboxes.guest import wire
from sandboxes.guest.evaluate import SIGNALS_RESET, interpret

CHUNK_BYTES = 1 << 16
KILL_ROUNDS = 100
KILL_PAUSE_S = 0.001
"""Between two looks at a session that was killed; one that cannot die, in the kernel, is not waited for."""

DRAIN_BYTES = 1 << 20
"""Read at most this much of a pipe after a job's end: a background process may write for ever."""

TIOCSWINSZ = 0x5414
SCRATCH = bytearray(CHUNK_BYTES)


class Outputs:
    """The pipes of one job on their way to the host."""

    def __init__(self, channel: bytes, cap: int, credit: int, names: dict[int, bytes]) -> None:
        self.channel = channel
        self.credit = credit
        self.truncated = 0
        self._names = names
        self._left = dict.fromkeys(names, cap)
        self._drained = dict.fromkeys(names, 0)
        self._open = set(names)
        for fd in names:
            os.set_blocking(fd, False)

    def wanted(self) -> list[int]:
        """Those that may be read now."""
        return [fd for fd in self._open if self.credit > 0 or self._left[fd] == 0]

    def take(self, fd: int) -> int:
        """Send one chunk; its size, 0 at the end of the pipe, -1 when it is empty for now."""
        left = self._left[fd]
        most = min(CHUNK_BYTES, self.credit) if left else CHUNK_BYTES
        try:
            size = os.readv(fd, (memoryview(SCRATCH)[:most],))
        except BlockingIOError:
            return -1
        except OSError:
            size = 0  # a terminal that nobody has open
        if size == 0:
            self._open.discard(fd)
        sent = min(size, left)
        if sent:
            self._left[fd] -= sent
            self.credit -= sent
            wire.send([self._names[fd], self.channel, bytes(memoryview(SCRATCH)[:sent])])
        self.truncated += size - sent
        return size

    def drain(self) -> bool:
        """Take what a job left behind; whether that is all, or enough. Without credit it is not yet."""
        for fd in tuple(self._open):
            while fd in self.wanted() and self._drained[fd] < DRAIN_BYTES:
                size = self.take(fd)
                self._drained[fd] = DRAIN_BYTES if size <= 0 else self._drained[fd] + size
        return all(self._drained[fd] >= DRAIN_BYTES for fd in self._open)

    def say(self, text: str) -> None:
        """A line of the agent's own, whatever the cap."""
        wire.send([b"err", self.channel, text.encode(errors="backslashreplace")[:200] + b"\n"])

    def end(self, code: int, number: int, timed_out: bool) -> None:
        """The last frame of a job."""
        numbers = (code, number, int(timed_out), self.truncated)
        wire.send([b"end", self.channel, *(b"%d" % one for one in numbers)])


class Job:
    """What can be said to anything that runs; most of it means nothing to a source."""

    def __init__(self, pid: int, outputs: Outputs, limit_s: float) -> None:
        self.pid = pid
        self.outputs = outputs
        self.left_s = limit_s

    def data(self, content: bytes) -> None:
        """More input."""

    def eof(self) -> None:
        """No more of it."""

    def signal(self, number: int) -> None:
        """Send one."""

    def resize(self, rows: int, columns: int) -> None:
        """Of its terminal."""


class Program(Job):
    """A running program with its pipes, or its terminal, which is both input and output."""

    def __init__(self, pid: int, outputs: Outputs, input_fd: int, limit_s: float) -> None:
        super().__init__(pid, outputs, limit_s)
        self._exited = os.pidfd_open(pid)
        self._has_ended = False
        self._status = 0
        self._timed_out = False
        self._input = input_fd
        self._is_terminal = input_fd in outputs._names
        self._unsent = bytearray()
        self._is_last = False
        os.set_blocking(input_fd, False)

    def interest(self) -> dict[int, int]:
        """What to wait for."""
        if self._has_ended:
            return {}
        masks = dict.fromkeys(self.outputs.wanted(), select.POLLIN)
        masks[self._exited] = select.POLLIN
        if self._unsent:
            masks[self._input] = masks.get(self._input, 0) | select.POLLOUT
        return masks

    def ready(self, fd: int, mask: int) -> None:
        """One of those is so."""
        if fd == self._exited:
            self._has_ended = True
            self._status = os.waitpid(self.pid, 0)[1]
        elif fd == self._input and self._unsent and mask & ~select.POLLIN:
            self._feed()
        if fd in self.outputs.wanted() and mask & ~select.POLLOUT:
            self.outputs.take(fd)

    def data(self, content: bytes) -> None:
        """More input."""
        self._unsent += content
        self._feed()

    def eof(self) -> None:
        """No more of it; a terminal's end is a character, which comes as data."""
        self._is_last = True
        self._feed()

    def signal(self, number: int) -> None:
        """To its process group, or to the one in the foreground of its terminal."""
        if self._has_ended:
            return
        groups = {self.pid}
        if self._is_terminal:
            groups = {self._foreground()} | (groups if number == signal.SIGKILL else set())
        for group in groups:
            try:
                os.killpg(group, number)
            except (ProcessLookupError, PermissionError):
                continue

    def resize(self, rows: int, columns: int) -> None:
        """Of its terminal."""
        if self._is_terminal:
            set_size(self._input, rows, columns)

    def stop(self) -> None:
        """Kill its whole session."""
        if not self._has_ended:
            kill_session(self.pid)

    def expire(self) -> None:
        """Its time is over."""
        self.left_s = float("inf")
        self._timed_out = not self._has_ended
        self.stop()

    def conclude(self) -> bool:
        """Send the end once it has ended and all was sent; whether that is so."""
        if not self._has_ended or not self.outputs.drain():
            return False
        code, number = how_it_ended(self._status)
        self.outputs.end(code, number, self._timed_out)
        for fd in {self._exited, self._input, *self.outputs._names} - {-1}:
            os.close(fd)
        return True

    def _foreground(self) -> int:
        try:
            group = os.tcgetpgrp(self._input)
        except OSError:
            group = 0
        return group if group > 1 else self.pid

    def _feed(self) -> None:
        if self._unsent:
            size = len(self._unsent)
            try:
                size = os.write(self._input, self._unsent) if self._input >= 0 else size
            except BlockingIOError:
                return
            except OSError:
                pass  # nobody reads it
            del self._unsent[:size]
            wire.send([b"took", self.outputs.channel, b"%d" % size])
        if self._is_last and not self._unsent and self._input >= 0 and not self._is_terminal:
            os.close(self._input)
            self._input = -1


def start_program(channel: bytes, words: list[bytes]) -> Program | None:
    """exec CH TIMEOUT_MS CAP CREDIT ROWS COLUMNS FOLDER PAIRS [NAME VALUE]... ARGV...

    Starts in the agent's own folder of the moment. None, with the end sent, for a program that does not
    start.
    """
    timeout_ms, cap, credit, rows, columns = (int(word) for word in words[:5])
    pairs = 2 * int(words[6])
    named, argv = words[7 : 7 + pairs], words[7 + pairs :]
    variables = {**os.environb, **{named[at]: named[at + 1] for at in range(0, pairs, 2)}}
    actions, theirs, input_fd, names = open_terminal(rows, columns) if rows else open_pipes()
    outputs = Outputs(channel, cap, credit, names)
    failure, pid = "", 0
    try:
        pid = os.posix_spawnp(
            argv[0], argv, variables, file_actions=actions, setsid=True, setsigdef=SIGNALS_RESET
        )
    except (OSError, ValueError) as error:
        failure = f"{os.fsdecode(argv[0])}: {getattr(error, 'strerror', None) or error}"
    finally:
        for fd in theirs:
            os.close(fd)
    wire.send([b"started", channel, b"%d" % pid])
    if pid:
        return Program(pid, outputs, input_fd, timeout_ms / 1000)
    outputs.say(failure)
    outputs.end(127, 0, False)
    for fd in {input_fd, *names}:
        os.close(fd)
    return None


if TYPE_CHECKING:
    Opened = tuple[list[tuple[Any, ...]], tuple[int, ...], int, dict[int, bytes]]


def open_pipes() -> Opened:
    """Three pipes: actions of the spawn, the child's ends, our input, our outputs by name."""
    in_r, in_w = os.pipe()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    ends = ((in_r, 0), (out_w, 1), (err_w, 2))
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, fd, place) for fd, place in ends]
    return actions, (in_r, out_w, err_w), in_w, {out_r: b"out", err_r: b"err"}


def open_terminal(rows: int, columns: int) -> Opened:
    """The same of a pseudo-terminal; the leader of a session that opens it is controlled by it."""
    master, slave = os.openpty()
    set_size(master, rows, columns)
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, 0, 2),
    ]
    return actions, (slave,), master, {master: b"out"}


def set_size(terminal: int, rows: int, columns: int) -> None:
    """Tell a terminal, and the programs on it, its size."""
    import fcntl

    size = b"".join(number.to_bytes(2, "little") for number in (rows, columns, 0, 0))
    fcntl.ioctl(terminal, TIOCSWINSZ, size)


class Interpreter:
    """The warm child; made at the first `python` request and again after each death."""

    def __init__(self) -> None:
        source_r, self.source = os.pipe()
        self.result, result_w = os.pipe()
        self.out, out_w = os.pipe()
        self.err, err_w = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._become(source_r, result_w, out_w, err_w)
            finally:
                os._exit(1)
        for fd in (source_r, result_w, out_w, err_w):
            os.close(fd)
        for fd in (self.source, self.out, self.err):
            os.set_blocking(fd, False)

    def _become(self, source: int, result: int, out: int, err: int) -> None:
        os.setsid()
        for fd, place in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
            os.dup2(fd, place)
        first, second = sorted((source, result))
        os.closerange(3, first)  # pipes of programs that run
        os.closerange(first + 1, second)
        os.closerange(second + 1, os.sysconf("SC_OPEN_MAX"))
        interpret(source, result)

    def close(self) -> None:
        """Forget a dead one."""
        for fd in (self.source, self.result, self.out, self.err):
            os.close(fd)


class Evaluation(Job):
    """A source in the interpreter; `lives` tells afterwards whether that one can go on."""

    def __init__(
        self, outputs: Outputs, interpreter: Interpreter, source: bytes, limit_s: float
    ) -> None:
        super().__init__(interpreter.pid, outputs, limit_s)
        self.lives = True
        self._interpreter = interpreter
        self._unsent = memoryview(len(source).to_bytes(4, "big") + source)
        self._code: bytes | None = None
        self._timed_out = False

    def interest(self) -> dict[int, int]:
        """What to wait for."""
        if self._code is not None:
            return {}
        masks = dict.fromkeys(self.outputs.wanted(), select.POLLIN)
        masks[self._interpreter.result] = select.POLLIN
        if self._unsent:
            masks[self._interpreter.source] = select.POLLOUT
        return masks

    def ready(self, fd: int, mask: int) -> None:
        """One of those is so."""
        if fd == self._interpreter.result:
            self._code = os.read(fd, 4)
            if len(self._code) < 4:
                self.stop()
        elif fd == self._interpreter.source:
            self._send()
        else:
            self.outputs.take(fd)

    def stop(self) -> None:
        """The interpreter must go."""
        kill_session(self.pid)
        self.lives = False

    def expire(self) -> None:
        """Its time is over."""
        self.left_s = float("inf")
        if self._code is None:
            self._timed_out, self._code = True, b""
            self.stop()

    def conclude(self) -> bool:
        """Send the end once there is a result and all was sent; whether that is so."""
        if self._code is None or not self.outputs.drain():
            return False
        if self.lives:
            self.outputs.end(int.from_bytes(self._code, "big", signed=True), 0, False)
            return True
        code, number = how_it_ended(os.waitpid(self.pid, 0)[1])
        if not self._timed_out:
            self.outputs.say("the interpreter ended, its names are lost")
        self.outputs.end(code or (0 if number else 1), number, self._timed_out)
        self._interpreter.close()
        return True

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._interpreter.source, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = memoryview(b"")


def kill_session(leader: int) -> None:
    """Kill every process of a session, also those that left the leader's process group.

    Returns once they are dead: what is killed lives until it is next scheduled, and may fork before.
    """
    for _ in range(KILL_ROUNDS):
        if not sum([killed(int(name), leader) for name in os.listdir("/proc") if name.isdigit()]):
            return
        time.sleep(KILL_PAUSE_S)


def killed(pid: int, leader: int) -> bool:
    """Kill a process if it is of this session and lives; whether it was."""
    try:
        if pid == 1 or os.getsid(pid) != leader:
            return False
        with open(f"/proc/{pid}/stat", "rb") as text:
            state = text.read().rpartition(b") ")[2][:1]
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return state not in b"ZX"


def how_it_ended(status: int) -> tuple[int, int]:
    """Exit code and signal of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    return (0, -code) if code < 0 else (code, 0)
