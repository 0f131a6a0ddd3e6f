"""The host's end of what runs in a guest: the frames of a job, held against what it may send.

A job is `started`, sends chunks within its credit and takes input within its window, and ends, in this
order; anything else breaks the link. Two uses: `CollectedJob` keeps what a call asked for, and gives
all credit at once because its cap bounds it; `ProcessJob` is read by somebody, and gives credit as it
is read. The guest is hostile input.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from sandboxes.commands import (
    CHUNK_BYTES_MAX,
    WINDOW_BYTES,
    Chunk,
    Command,
    ProcessEnd,
    StreamName,
    Terminal,
)
from sandboxes.runtimes.guest_wire import (
    UNLIMITED,
    GuestProtocolError,
    encoded,
    number_in,
    refusal,
)
from venusrl.env.sandbox import ExecRequest, ExecResult, PythonRequest, SandboxError

SLACK_BYTES: Final = 256
"""The guest agent may add one line of its own, whatever cap and credit say."""

SIGNAL_MAX: Final = 64
PID_MAX: Final = 1 << 22
"""Of Linux."""

END_OF_INPUT: Final = b"\x04"
"""What a terminal in its usual mode takes for the end of its input."""

TERM: Final = "xterm-256color"
"""What a terminal is called where the command does not say."""

_STREAMS: Final = {b"out": StreamName.STDOUT, b"err": StreamName.STDERR}

Talk = Callable[[list[bytes]], None]
"""Sends a frame, without its channel, while its link lives."""


class Job:
    """Order, credit, cap and input of one job."""

    def __init__(self, limit_s: float | None, cap: int, credit: int) -> None:
        self.limit_s = limit_s
        self.is_stalled = False
        """Whether it waits for us, not we for it."""
        self.pid: int | None = None
        self.talk: Talk = lambda fields: None
        self._left = dict.fromkeys(StreamName, cap)
        self._credit = credit
        self._slack = SLACK_BYTES
        self._unsent: deque[memoryview] = deque()
        self._room = WINDOW_BYTES
        self._is_closing = False
        self._said_eof = False

    def take(self, fields: list[bytes]) -> bool:
        """One frame; whether it was the last. Raises GuestProtocolError."""
        match fields:
            case [b"started", pid] if self.pid is None:
                self.pid = number_in(pid, 0, PID_MAX)
                self._on_started()
            case [(b"out" | b"err") as name, content] if self.pid is not None:
                self._account(_STREAMS[name], len(content))
                self._on_chunk(_STREAMS[name], content)
            case [b"took", size] if self.pid is not None:
                self._room += number_in(size, 1, WINDOW_BYTES - self._room)
                self._push()
            case [b"end", code, signal, timed_out, cut] if self.pid is not None:
                end = ProcessEnd(
                    number_in(code, 0, 255),
                    number_in(signal, 0, SIGNAL_MAX),
                    bool(number_in(timed_out, 0, 1)),
                )
                self._unsent.clear()
                self._on_end(end, number_in(cut))
                return True
            case [b"error", reason, detail] if self.pid is None:
                self._on_refusal(refusal(reason, detail))
                return True
            case _:
                raise GuestProtocolError("not what this job may say now")
        return False

    def lose(self, cause: str) -> None:
        """Its sandbox is gone."""
        raise NotImplementedError

    def feed(self, content: bytes) -> None:
        """Send input as there is room for it."""
        self._unsent.append(memoryview(content))
        self._push()

    def close_input(self) -> None:
        """No input comes after what was fed."""
        self._is_closing = True
        self._push()

    def _push(self) -> None:
        while self._unsent and self._room:
            first = self._unsent.popleft()
            piece = first[: min(self._room, CHUNK_BYTES_MAX)]
            if len(piece) < len(first):
                self._unsent.appendleft(first[len(piece) :])
            if piece:
                self._room -= len(piece)
                self.talk([b"data", bytes(piece)])
        if self._is_closing and not self._unsent and not self._said_eof:
            self._said_eof = True
            self.talk([b"eof"])

    def _account(self, stream: StreamName, size: int) -> None:
        if not 0 < size <= CHUNK_BYTES_MAX:
            raise GuestProtocolError(f"a chunk of {size} bytes")
        self._slack -= max(0, size - min(self._credit, self._left[stream]))
        self._credit = max(0, self._credit - size)
        self._left[stream] = max(0, self._left[stream] - size)
        if self._slack < 0:
            raise GuestProtocolError("more output than was asked for")

    def _on_started(self) -> None:
        """It runs."""

    def _on_chunk(self, stream: StreamName, content: bytes) -> None:
        raise NotImplementedError

    def _on_end(self, end: ProcessEnd, truncated_bytes: int) -> None:
        raise NotImplementedError

    def _on_refusal(self, error: SandboxError) -> None:
        raise NotImplementedError


class CollectedJob(Job):
    """A call that is answered once, at its end, with the first bytes of both streams."""

    def __init__(
        self, request: ExecRequest | PythonRequest, cap: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(request.timeout_s, cap, 2 * cap)
        self.answer: asyncio.Future[ExecResult] = loop.create_future()
        self._cap = cap
        self._request = request
        self._kept = {stream: bytearray() for stream in StreamName}

    def fields(self) -> list[bytes]:
        """The request as the guest agent reads it, without its channel."""
        numbers = [b"%d" % (self._request.timeout_s * 1000), b"%d" % self._cap]
        if isinstance(self._request, PythonRequest):
            return [b"python", *numbers, self._request.source.encode(errors="replace")]
        words = [encoded(word) for word in self._request.argv] or [b""]
        plain = [b"%d" % self._credit, b"0", b"0", b"", b"0"]
        return [b"exec", *numbers, *plain, *words]

    def begin(self) -> None:
        """After its request: the input."""
        if isinstance(self._request, ExecRequest):
            self.feed(self._request.stdin)
            self.close_input()

    def lose(self, cause: str) -> None:
        """Its sandbox is gone."""
        if not self.answer.done():
            self.answer.set_exception(SandboxError("lost", cause))
            self.answer.exception()  # nobody may be waiting any more

    def _on_chunk(self, stream: StreamName, content: bytes) -> None:
        self._kept[stream] += content

    def _on_end(self, end: ProcessEnd, truncated_bytes: int) -> None:
        code = 128 + end.signal if end.signal else end.exit_code
        out, err = (bytes(self._kept[stream]) for stream in StreamName)
        if not self.answer.done():
            self.answer.set_result(ExecResult(code, out, err, truncated_bytes, end.timed_out))

    def _on_refusal(self, error: SandboxError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ProcessJob(Job):
    """A program that somebody reads: `Process` of the port."""

    def __init__(self, command: Command, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(command.timeout_s, UNLIMITED, WINDOW_BYTES)
        self.answer: asyncio.Future[ProcessJob] = loop.create_future()
        """This, once it runs."""
        self._command = command
        self._unread: dict[StreamName, bytearray] = {}
        self._owed = 0
        self._news = asyncio.Event()
        self._end: ProcessEnd | None = None
        self._lost: str | None = None
        self._is_dropped = False

    def fields(self) -> list[bytes]:
        """The request as the guest agent reads it, without its channel."""
        command, size, variables = self._command, Terminal(0, 0), dict(self._command.variables)
        if command.terminal is not None:
            size = _bounded(command.terminal)
            variables.setdefault("TERM", TERM)
        time_ms = UNLIMITED if command.timeout_s is None else int(command.timeout_s * 1000)
        numbers = (time_ms, UNLIMITED, self._credit, size.rows, size.columns)
        pairs = [encoded(text) for pair in variables.items() for text in pair]
        place = [encoded(command.folder), b"%d" % len(variables)]
        words = [encoded(word) for word in command.argv] or [b""]
        return [b"exec", *(b"%d" % number for number in numbers), *place, *pairs, *words]

    def begin(self) -> None:
        """It gets its input later."""

    async def read(self) -> Chunk | None:
        """The next chunk; None once it has ended and all was read. Raises SandboxError, `lost`."""
        while not self._unread:
            self._raise_if_lost()
            if self._end is not None:
                return None
            await self._change()
        stream = next(iter(self._unread))
        content = self._unread.pop(stream)
        self.is_stalled = bool(self._unread)
        self._give(len(content))
        return Chunk(stream, bytes(content))

    async def wait(self) -> ProcessEnd:
        """How it ended. Raises SandboxError, `lost`."""
        while self._end is None:
            self._raise_if_lost()
            await self._change()
        return self._end

    async def write(self, content: bytes) -> None:
        """Feed it, and wait until that is on its way. Raises SandboxError."""
        self._raise_if_lost()
        if self._is_closing:
            raise SandboxError("refused", "its input is closed")
        if content and self._end is None:
            self.feed(bytes(content))
        while self._unsent and self._end is None:
            self._raise_if_lost()
            await self._change()

    def close_input(self) -> None:
        """Nothing more comes."""
        self._raise_if_lost()
        if self._command.terminal is None:
            super().close_input()
        elif not self._is_closing and self._end is None:
            self._is_closing = True
            self._said_eof = True
            self.feed(END_OF_INPUT)

    def signal(self, number: int) -> None:
        """Signal its group. Raises SandboxError, `refused` for a number that is no signal."""
        self._raise_if_lost()
        if not 1 <= number <= SIGNAL_MAX:
            raise SandboxError("refused", f"{number} is no signal")
        self._tell([b"signal", b"%d" % number])

    def resize(self, terminal: Terminal) -> None:
        """Change the size of its terminal. Raises SandboxError."""
        self._raise_if_lost()
        if self._command.terminal is None:
            raise SandboxError("refused", "it has no terminal")
        size = _bounded(terminal)
        self._tell([b"resize", b"%d" % size.rows, b"%d" % size.columns])

    def stop(self) -> None:
        """Kill its session and drop what it says."""
        if self._end is not None or self._lost is not None or self._is_dropped:
            return
        self._is_dropped = True
        self._tell([b"stop"])
        dropped = sum(len(content) for content in self._unread.values())
        self._unread.clear()
        self.is_stalled = False
        self._give(dropped)

    def lose(self, cause: str) -> None:
        """Its sandbox is gone."""
        self._lost = self._lost or cause
        if not self.answer.done():
            self.answer.set_exception(SandboxError("lost", cause))
            self.answer.exception()  # nobody may be waiting any more
        self._news.set()

    def take(self, fields: list[bytes]) -> bool:
        """One frame; whether it was the last. Raises GuestProtocolError."""
        try:
            return super().take(fields)
        finally:
            self._news.set()

    def _on_started(self) -> None:
        if self.answer.done():  # whoever asked was cancelled: nobody would ever read it
            self.stop()
        else:
            self.answer.set_result(self)

    def _on_chunk(self, stream: StreamName, content: bytes) -> None:
        if self._is_dropped:
            self._give(len(content))
            return
        self._unread.setdefault(stream, bytearray()).extend(content)
        self.is_stalled = True

    def _on_end(self, end: ProcessEnd, truncated_bytes: int) -> None:
        if truncated_bytes:
            raise GuestProtocolError("output was dropped that nobody wanted dropped")
        self._end = end

    def _on_refusal(self, error: SandboxError) -> None:
        self._lost = "it did not start"
        if not self.answer.done():
            self.answer.set_exception(error)

    def _give(self, size: int) -> None:
        """Credit for what was read, not for every byte by itself."""
        self._owed += size
        if self._owed >= WINDOW_BYTES // 2:
            self._credit += self._owed
            self._tell([b"credit", b"%d" % self._owed])
            self._owed = 0

    def _tell(self, fields: list[bytes]) -> None:
        if self._end is None and self._lost is None:
            self.talk(fields)

    async def _change(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _raise_if_lost(self) -> None:
        if self._lost is not None:
            raise SandboxError("lost", self._lost)


def _bounded(terminal: Terminal) -> Terminal:
    """Within what the kernel keeps of a size."""
    return Terminal(*(min(max(1, one), 0xFFFF) for one in (terminal.rows, terminal.columns)))
