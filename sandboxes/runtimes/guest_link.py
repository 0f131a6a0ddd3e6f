"""The host's side of the guest agent's protocol over a stream socket; the guest is hostile input.

Requests are pipelined and answered in order. Each has a deadline that starts when it reaches the
head of the line: the guest keeps the request's own timeout, so a guest that misses it by the grace
is stuck and the link breaks. A link that broke fails every request, now and later, with `lost`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from domain.sandbox import SandboxLimits
from sandboxes.runtimes.guest_control import (
    AskStats,
    ControlRequest,
    Place,
    PrepareSnapshot,
    Resume,
    SetClock,
    Trim,
    control_fields,
)
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    SandboxFailure,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)

T = TypeVar("T")

PROTOCOL: Final = 1
"""Version that the guest agent must name in its hello."""

GUEST_FRAME_BYTES_MAX: Final = FILE_BYTES_MAX + (1 << 16)
"""Largest frame that a guest may send: one file, or both output streams of the default limit."""

LINE_MAX: Final = 64
"""Requests of one sandbox that may wait; an environment that asks for more at once is refused."""

FIELDS_MAX: Final = 8
"""No answer has more fields; more are an attack on the parser's memory."""

ANSWER_GRACE_S: Final = 10.0
"""A guest on a busy machine may be late by seconds; one that is later does not answer at all."""

FILE_TIMEOUT_S: Final = 30.0
"""Reading and writing 8 MiB of memory takes milliseconds; only a stuck guest needs longer."""

EXIT_CODES: Final = range(-1, 256)
"""What a command may end with: a status of 8 bits, signals as 128 and more."""

_REASONS: Final[dict[bytes, SandboxFailure]] = {
    b"not_found": "not_found",
    b"denied": "denied",
    b"too_large": "too_large",
}


class GuestProtocolError(ValueError):
    """The guest said something that no guest agent says."""


AgentRequest = SandboxRequest | ControlRequest
"""An environment's call, or the host's own."""


@dataclass(slots=True)
class _Pending:
    request: AgentRequest
    answer: asyncio.Future[SandboxResult]


def within(request: SandboxRequest, limits: SandboxLimits) -> SandboxRequest:
    """The request with its timeout cut to the sandbox's limit."""
    if not isinstance(request, ExecRequest | PythonRequest):
        return request
    most = limits.exec_timeout_s
    return request if 0.001 <= request.timeout_s <= most else replace(request, timeout_s=most)


def pack(fields: list[bytes]) -> bytes:
    """One frame."""
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """The fields of a frame's body; GuestProtocolError when they do not fill it exactly."""
    fields: list[bytes] = []
    at = 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        if at + 4 > len(body) or end > len(body) or len(fields) == FIELDS_MAX:
            raise GuestProtocolError("fields do not fill their frame")
        fields.append(body[at + 4 : end])
        at = end
    if not fields:
        raise GuestProtocolError("an empty frame")
    return fields


def encode_request(request: AgentRequest, output_cap: int) -> bytes:
    """A request as the guest agent reads it."""
    match request:
        case ExecRequest(argv, stdin, timeout_s):
            words = [word.encode(errors="surrogateescape") for word in argv]
            return pack([b"exec", b"%d" % (timeout_s * 1000), b"%d" % output_cap, stdin, *words])
        case PythonRequest(source, timeout_s):
            text = source.encode(errors="replace")
            return pack([b"python", b"%d" % (timeout_s * 1000), b"%d" % output_cap, text])
        case ReadRequest(path):
            return pack([b"read", b"%d" % FILE_BYTES_MAX, path.encode(errors="surrogateescape")])
        case WriteRequest(path, content):
            return pack([b"write", path.encode(errors="surrogateescape"), content])
        case _:
            return pack(control_fields(request))


def decode_answer(request: AgentRequest, fields: list[bytes], output_cap: int) -> SandboxResult:
    """The result of the given request. Raises SandboxError for a refusal by the guest."""
    match request, fields:
        case ExecRequest() | PythonRequest(), [b"done", code, timed_out, cut, out, err]:
            if max(len(out), len(err)) > output_cap + ANSWER_SLACK_BYTES:
                raise GuestProtocolError("more output than was asked for")
            exit_code = _number(code)
            if exit_code not in EXIT_CODES:
                raise GuestProtocolError("an impossible exit code")
            return ExecResult(exit_code, out, err, max(0, _number(cut)), timed_out == b"1")
        case ReadRequest() | AskStats(), [b"bytes", content]:
            return content
        case WriteRequest() | Place() | PrepareSnapshot() | SetClock() | Trim(), [b"ok"]:
            return None
        case ReadRequest() | WriteRequest() | Place(), [b"error", reason, detail] if (
            reason in _REASONS
        ):
            raise SandboxError(_REASONS[reason], detail[:200].decode(errors="replace"))
    raise GuestProtocolError("not an answer to this request")


ANSWER_SLACK_BYTES: Final = 256
"""The guest agent may add one line of its own to a stream that is full."""


def _number(text: bytes) -> int:
    if len(text) > 20:
        raise GuestProtocolError("a number that is too long")
    try:
        return int(text)
    except ValueError as error:
        raise GuestProtocolError("not a number") from error


def _lose(answer: asyncio.Future[T], cause: str) -> None:
    if not answer.done():
        answer.set_exception(SandboxError("lost", cause))
        answer.exception()  # nobody may be waiting any more


class GuestLink(asyncio.Protocol):
    """One connection to one guest agent. `on_lost` is told once why it ended."""

    def __init__(self, output_cap: int, on_lost: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        """The guest's Python version, set by its hello."""
        self._loop = loop
        self._output_cap = min(output_cap, FILE_BYTES_MAX // 2)
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._line: deque[_Pending] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._lost: str | None = None
        self._is_held = False

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self._line)

    def wake(self, resume: Resume) -> None:
        """Tell a clone who it is; its hello makes the link `ready`. Only before the first call."""
        assert self._transport is not None
        assert not self.ready.done()
        self._transport.write(pack(resume.fields()))

    def call(self, request: AgentRequest) -> asyncio.Future[SandboxResult]:
        """Send a request; the future fails with SandboxError."""
        answer: asyncio.Future[SandboxResult] = self._loop.create_future()
        if self._lost is not None or self._transport is None:
            answer.set_exception(SandboxError("lost", self._lost or "not connected"))
            return answer
        if isinstance(request, WriteRequest) and len(request.content) > FILE_BYTES_MAX:
            answer.set_exception(SandboxError("too_large", f"{len(request.content)} bytes"))
            return answer
        if len(self._line) >= LINE_MAX:
            answer.set_exception(SandboxError("refused", f"{LINE_MAX} calls wait already"))
            return answer
        self._line.append(_Pending(request, answer))
        self._transport.write(encode_request(request, self._output_cap))
        if len(self._line) == 1:
            self._watch_head()
        return answer

    def hold(self) -> None:
        """Its sandbox is paused: no deadline runs."""
        self._is_held = True
        self._watch_head()

    def go_on(self) -> None:
        """Its sandbox runs again: the first request in line has its whole time once more."""
        self._is_held = False
        self._watch_head()

    def fail(self, cause: str) -> None:
        """Break the link: everything that waits, and everything to come, is lost."""
        if self._lost is not None:
            return
        self._lost = cause
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting = [pending.answer for pending in self._line]
        self._line.clear()
        self._buffer.clear()
        _lose(self.ready, cause)
        for answer in waiting:
            _lose(answer, cause)
        self._on_lost(cause)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.fail("its guest agent ended")

    def data_received(self, data: bytes) -> None:
        """Called by the loop: cut frames, never holding more than one and a read of the next."""
        if self._lost is not None:
            return
        self._buffer += data
        try:
            while self._lost is None and (body := self._next_body()) is not None:
                self._take(unpack(body))
        except GuestProtocolError as error:
            self.fail(f"its guest agent broke the protocol: {error}")

    def _next_body(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if size > GUEST_FRAME_BYTES_MAX:
            raise GuestProtocolError(f"a frame of {size} bytes")
        if len(self._buffer) < 4 + size:
            return None
        body = bytes(memoryview(self._buffer)[4 : 4 + size])
        del self._buffer[: 4 + size]
        return body

    def _take(self, fields: list[bytes]) -> None:
        if not self.ready.done():
            self._greet(fields)
            return
        if not self._line:
            raise GuestProtocolError("an answer that nobody asked for")
        pending = self._line[0]
        try:
            result = decode_answer(pending.request, fields, self._output_cap)
        except SandboxError as error:
            self._settle(error)
        else:
            self._settle(result)

    def _greet(self, fields: list[bytes]) -> None:
        if fields[0] != b"hello" or len(fields) != 3 or _number(fields[1]) != PROTOCOL:
            raise GuestProtocolError("no hello of this protocol")
        self.ready.set_result(fields[2][:32].decode(errors="replace"))

    def _settle(self, outcome: SandboxResult | SandboxError) -> None:
        answer = self._line.popleft().answer
        if answer.done():  # the caller was cancelled; the guest has run the request all the same
            pass
        elif isinstance(outcome, SandboxError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)
        self._watch_head()

    def _watch_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line and not self._is_held:
            request = self._line[0].request
            limit_s = FILE_TIMEOUT_S
            if isinstance(request, ExecRequest | PythonRequest):
                limit_s = request.timeout_s
            self._timer = self._loop.call_later(limit_s + ANSWER_GRACE_S, self.fail, LATE)


LATE: Final = "its guest agent did not answer in time"
"""Cause of a link that missed a deadline."""
