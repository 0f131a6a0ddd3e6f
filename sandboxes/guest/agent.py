"""The guest agent: process 1 of a sandbox, one request at a time over fd 0, a stream socket.

Runs as `python -I -S -X utf8 agent.pyc MEMORY PIDS DISK FILES`, or in a fork of the zygote, standard
library only and few imports, for it starts with every sandbox. A frame is a big-endian uint32 length
and that many bytes: fields, each a uint32 length and its bytes; the first names the kind. Numbers
are decimal.

    exec TIMEOUT_MS CAP STDIN ARGV...   python TIMEOUT_MS CAP SOURCE
    read MAX PATH    write PATH CONTENT    shutdown
    -> hello PROTOCOL PYTHON | done EXIT TIMED_OUT TRUNCATED STDOUT STDERR | bytes CONTENT | ok
       | error REASON DETAIL

Python source runs in a forked child that stays warm: a crash or a timeout of the code costs its
names, never the sandbox. Nothing in here is a boundary: the host treats every byte as hostile.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import stat
import sys
import time

PROTOCOL = 1
HOME = "/work"
READ_BYTES = 1 << 16
DRAIN_BYTES = 1 << 20
"""Read at most this much after a command's end: a background process may go on writing for ever."""

TICK_S = 0.5
"""A sleep of the whole sandbox, paused or starved of CPU, costs a command at most this much of its
time, give or take a wake-up."""

SIGNALS_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
"""The interpreter ignores them; programs expect the default."""


class Capture:
    """The first `cap` bytes of two pipes; what comes after is counted and dropped as it arrives."""

    def __init__(self, out: int, err: int, cap: int) -> None:
        self.kept = {out: bytearray(), err: bytearray()}
        self.truncated = 0
        self._cap = cap
        self._scratch = bytearray(READ_BYTES)

    def read(self, fd: int) -> int:
        """Take one chunk; 0 at the end of the pipe, -1 when it is empty for now."""
        try:
            size = os.readv(fd, (self._scratch,))
        except BlockingIOError:
            return -1
        kept = self.kept[fd]
        room = min(size, self._cap - len(kept))
        kept += memoryview(self._scratch)[:room]
        self.truncated += size - room
        return size

    def drain(self) -> None:
        """Take what lies in the pipes, within a bound."""
        for fd in self.kept:
            taken = 0
            while taken < DRAIN_BYTES and (size := self.read(fd)) > 0:
                taken += size

    def answer(self, code: int, timed_out: bool) -> list[bytes]:
        """The `done` fields."""
        out, err = self.kept.values()
        numbers = (code, int(timed_out), self.truncated)
        return [b"done", *(b"%d" % number for number in numbers), bytes(out), bytes(err)]


class Allowance:
    """What is left of a command's time. Only time in which this process could run is counted."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._at = time.monotonic()

    def wait_ms(self) -> float:
        """How long the next wait may be; 0 once nothing is left."""
        now = time.monotonic()
        self._left -= min(now - self._at, 2 * TICK_S)
        self._at = now
        return max(0.0, min(self._left, TICK_S)) * 1000


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
                os.setsid()
                for fd in (self.source, self.result, self.out, self.err):
                    os.close(fd)
                for fd, place in ((os.open(os.devnull, os.O_RDONLY), 0), (out_w, 1), (err_w, 2)):
                    os.dup2(fd, place)
                interpret(source_r, result_w)
            finally:
                os._exit(1)
        for fd in (source_r, result_w, out_w, err_w):
            os.close(fd)
        for fd in (self.source, self.out, self.err):
            os.set_blocking(fd, False)

    def run(self, source: bytes, timeout_s: float, cap: int) -> tuple[list[bytes], bool]:
        """The `done` fields, and whether the child lives on."""
        capture = Capture(self.out, self.err, cap)
        allowance = Allowance(timeout_s)
        poller = select.poll()
        for fd in (self.out, self.err, self.result):
            poller.register(fd, select.POLLIN)
        unsent = memoryview(len(source).to_bytes(4, "big") + source)
        while True:
            unsent = self._send(unsent, poller)
            left_ms = allowance.wait_ms()
            if left_ms <= 0:
                return self._end(capture, timed_out=True)
            for fd, _ in poller.poll(left_ms):
                if fd == self.result:
                    return self._finish(capture)
                if fd in capture.kept and capture.read(fd) == 0:
                    poller.unregister(fd)

    def _send(self, unsent: memoryview, poller: select.poll) -> memoryview:
        if not unsent:
            return unsent
        try:
            unsent = unsent[os.write(self.source, unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            unsent = memoryview(b"")
        if unsent:
            poller.register(self.source, select.POLLOUT)
        else:
            poller.register(self.source, 0)
        return unsent

    def _finish(self, capture: Capture) -> tuple[list[bytes], bool]:
        code = os.read(self.result, 4)
        if len(code) < 4:
            return self._end(capture, timed_out=False)
        capture.drain()
        return capture.answer(int.from_bytes(code, "big", signed=True), False), True

    def _end(self, capture: Capture, timed_out: bool) -> tuple[list[bytes], bool]:
        kill_session(self.pid)
        code = exit_code(os.waitpid(self.pid, 0)[1])
        capture.drain()
        if not timed_out:
            capture.kept[self.err] += b"the interpreter ended, its names are lost\n"
        for fd in (self.source, self.result, self.out, self.err):
            os.close(fd)
        return capture.answer(code or 1, timed_out), False


def interpret(source_fd: int, result_fd: int) -> None:
    """The child's loop: run one source after the other in the same namespace. Never returns."""
    for number in (signal.SIGINT, *SIGNALS_RESET):
        signal.signal(number, signal.SIG_DFL)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    mine = os.getpid()
    while header := read_exactly(source_fd, 4):
        code = run_source(read_exactly(source_fd, int.from_bytes(header, "big")), names)
        if os.getpid() != mine:
            os._exit(code)  # a fork that user code made and forgot
        os.write(result_fd, code.to_bytes(4, "big", signed=True))
    os._exit(0)


def run_source(source: bytes, names: dict[str, object]) -> int:
    """Run one source; 0, its exit status, or 1 after an exception whose traceback is printed."""
    code = 0
    try:
        exec(compile(source, "<python>", "exec"), names)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            code = stop.code & 0xFF
        elif stop.code is not None:
            code = report(stop)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        code = report(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - user code may have closed or replaced them
        code = code or 1
    return code


def report(error: BaseException) -> int:
    """Print a traceback without this file's own frame; always 1."""
    try:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
    except BaseException:  # noqa: BLE001 - nothing left to say
        pass
    return 1


def run_command(argv: list[bytes], stdin: bytes, timeout_s: float, cap: int) -> list[bytes]:
    """Run a program to its end or its timeout; what it leaves in the background lives on."""
    in_r, in_w = os.pipe()
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    actions = [
        (os.POSIX_SPAWN_DUP2, in_r, 0),
        (os.POSIX_SPAWN_DUP2, out_w, 1),
        (os.POSIX_SPAWN_DUP2, err_w, 2),
    ]
    try:
        pid = os.posix_spawnp(
            argv[0], argv, os.environ, file_actions=actions, setsid=True, setsigdef=SIGNALS_RESET
        )
    except (OSError, ValueError) as error:
        pid, failure = 0, f"{os.fsdecode(argv[0])}: {getattr(error, 'strerror', None) or error}\n"
    for fd in (in_r, out_w, err_w):
        os.close(fd)
    capture = Capture(out_r, err_r, cap)
    timed_out, code = False, 127
    if pid:
        timed_out, code = follow(pid, in_w, stdin, capture, Allowance(timeout_s))
    else:
        capture.kept[err_r] += failure.encode(errors="backslashreplace")
        os.close(in_w)
    answer = capture.answer(code, timed_out)
    os.close(out_r)
    os.close(err_r)
    return answer


def follow(
    pid: int, in_w: int, stdin: bytes, capture: Capture, allowance: Allowance
) -> tuple[bool, int]:
    """Feed and read a running command; (timed out, exit code) at its end. Closes `in_w`."""
    exited = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(exited, select.POLLIN)
    for fd in (in_w, *capture.kept):
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLOUT if fd == in_w else select.POLLIN)
    unsent: memoryview | None = memoryview(stdin)
    timed_out = ended = False
    while not ended:
        left_ms = allowance.wait_ms()
        timed_out = ended = left_ms <= 0
        for fd, _ in poller.poll(left_ms):
            ended = ended or fd == exited
            if fd == in_w and unsent is not None:
                unsent = feed(in_w, unsent, poller)
            if fd in capture.kept and capture.read(fd) == 0:
                poller.unregister(fd)
    if timed_out:
        kill_session(pid)
    status = os.waitpid(pid, 0)[1]
    capture.drain()
    os.close(exited)
    if unsent is not None:
        os.close(in_w)
    return timed_out, exit_code(status)


def feed(in_w: int, unsent: memoryview, poller: select.poll) -> memoryview | None:
    """Write some of the input; None, with the pipe closed, once all is written or unwanted."""
    try:
        unsent = unsent[os.write(in_w, unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        unsent = memoryview(b"")
    if unsent:
        return unsent
    poller.unregister(in_w)
    os.close(in_w)
    return None


def kill_session(leader: int) -> None:
    """Kill every process of a session, also those that left the leader's process group."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == 1:
            continue
        try:
            if os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)
        except ProcessLookupError:
            continue


def exit_code(status: int) -> int:
    """A wait status as shells show it: 128 + signal for a killed process."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def inside(path: bytes) -> str:
    """The real path of a file in the work folder; PermissionError for one that leads out of it."""
    joined = os.path.normpath(os.path.join(HOME, os.fsdecode(path)))
    folder = os.path.realpath(os.path.dirname(joined))
    if folder != HOME and not folder.startswith(HOME + "/"):
        raise PermissionError(f"outside of {HOME}")
    return os.path.join(folder, os.path.basename(joined))


def read_file(path: bytes, limit: int) -> list[bytes]:
    """A regular file's bytes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(inside(path), flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError("not a regular file")
        if status.st_size > limit:
            return [b"error", b"too_large", b"%d bytes" % status.st_size]
        return [b"bytes", read_exactly(fd, limit)]
    finally:
        os.close(fd)


def write_file(path: bytes, content: bytes) -> list[bytes]:
    """Replace a regular file, making its folders."""
    target = inside(path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PermissionError("not a regular file")
        os.ftruncate(fd, 0)
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        return [b"ok"]
    finally:
        os.close(fd)


def guarded(request: list[bytes]) -> list[bytes]:
    """A file request's answer; what the file system refuses becomes an `error`."""
    try:
        if request[0] == b"read":
            return read_file(request[2], int(request[1]))
        return write_file(request[1], request[2])
    except (FileNotFoundError, NotADirectoryError) as error:
        reason, text = b"not_found", str(error)
    except (OSError, ValueError) as error:
        reason, text = b"denied", str(error)
    return [b"error", reason, text.encode(errors="backslashreplace")]


def read_exactly(fd: int, size: int) -> bytes:
    """`size` bytes, fewer at the end of the stream."""
    content = bytearray()
    while len(content) < size and (chunk := os.read(fd, min(size - len(content), 1 << 20))):
        content += chunk
    return bytes(content)


def receive() -> list[bytes]:
    """The next request; empty when the host is gone."""
    body = memoryview(read_exactly(0, int.from_bytes(read_exactly(0, 4), "big")))
    fields = []
    while body:
        size = int.from_bytes(body[:4], "big")
        fields.append(bytes(body[4 : 4 + size]))
        body = body[4 + size :]
    return fields


def send(fields: list[bytes]) -> None:
    """Write one frame."""
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    view = memoryview(len(body).to_bytes(4, "big") + body)
    while view:
        view = view[os.write(0, view) :]


def reap(kept: int) -> None:
    """Collect orphans that ended, but not the interpreter: process 1 is everybody's parent."""
    peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        while (ended := os.waitid(os.P_ALL, 0, peek)) and ended.si_pid != kept:
            os.waitpid(ended.si_pid, 0)
    except ChildProcessError:
        return


def limit(memory: int, pids: int, disk: int, files: int) -> None:
    """Hard limits of this process and all that it will start; nobody inside can raise them."""
    for kind, value in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_NPROC, pids),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def serve() -> None:
    """Answer requests until the host closes the socket or asks to stop."""
    interpreter: Interpreter | None = None
    while (request := receive()) and request[0] != b"shutdown":
        kind = request[0]
        if kind == b"exec":
            seconds, cap = int(request[1]) / 1000, int(request[2])
            send(run_command(request[4:], request[3], seconds, cap))
        elif kind == b"python":
            seconds, cap = int(request[1]) / 1000, int(request[2])
            try:
                interpreter = interpreter or Interpreter()
            except OSError as error:
                send([b"done", b"126", b"0", b"0", b"", str(error).encode()])
                continue
            answer, lives = interpreter.run(request[3], seconds, cap)
            interpreter = interpreter if lives else None
            send(answer)
        else:
            send(guarded(request))
        reap(interpreter.pid if interpreter else 0)


def start(caps: list[int]) -> None:
    """Close the host's files that came along, set the limits, say hello, serve."""
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    limit(*caps)
    os.makedirs(HOME + "/.tmp", exist_ok=True)
    send([b"hello", b"%d" % PROTOCOL, sys.version.split()[0].encode()])
    serve()


if __name__ == "__main__":
    start([int(text) for text in sys.argv[1:5]])
