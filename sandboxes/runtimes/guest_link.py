"""The host's side of the guest agent's protocol over a stream socket; the guest is hostile input.

Every request has a channel, so that many are under way at once: programs (`start`) and questions
(`ask`) go out immediately. Calls go out one after the other, each when the one before it was answered.
A deadline starts when a request goes out: the guest keeps the request's own timeout, so a guest that
misses it by the grace is stuck and the link breaks. A link that broke fails everything, now and later,
with `lost`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from domain.sandbox import SandboxLimits
from sandboxes.commands import COMMANDS_MAX, Command, Process
from sandboxes.files import FileResult
from sandboxes.runtimes.guest_answers import AnswerChannel, AskRequest, answer_fields
from sandboxes.runtimes.guest_control import ControlRequest, Resume
from sandboxes.runtimes.guest_jobs import CollectedJob, ProcessJob
from sandboxes.runtimes.guest_wire import (
    GUEST_FRAME_BYTES_MAX,
    PROTOCOL,
    WORDS_MAX,
    GuestProtocolError,
    number_in,
    pack,
    unpack,
)
from venusrl.env.sandbox import (
    FILE_BYTES_MAX,
    ExecRequest,
    PythonRequest,
    SandboxError,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)

LINE_MAX: Final = 64
"""Requests of one sandbox that may wait; an environment that asks for more at once is refused."""

ASKS_MAX: Final = 64
"""Questions of one sandbox that may be open at once."""

ANSWER_GRACE_S: Final = 10.0
"""A guest on a busy machine may be late by seconds; one that is later does not answer at all."""

LATE: Final = "its guest agent did not answer in time"
"""Cause of a link that missed a deadline."""

AgentRequest: TypeAlias = SandboxRequest | ControlRequest
"""An environment's call, or the host's own."""

Conversation: TypeAlias = AnswerChannel | CollectedJob | ProcessJob
"""What a channel is about."""


@dataclass(slots=True)
class _Open:
    about: Conversation
    timer: asyncio.TimerHandle | None = None


def within(request: SandboxRequest, limits: SandboxLimits) -> SandboxRequest:
    """The request with its timeout cut to the sandbox's limit."""
    if not isinstance(request, ExecRequest | PythonRequest):
        return request
    most = limits.exec_timeout_s
    return request if 0.001 <= request.timeout_s <= most else replace(request, timeout_s=most)


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
        self._channels: dict[int, _Open] = {}
        self._last = 0
        """Channel of the newest request; no number comes twice."""
        self._line: deque[AnswerChannel | CollectedJob] = deque()
        """Calls that were asked for; the first one is under way."""
        self._waiting: dict[int, list[bytes]] = {}
        self._lost: str | None = None
        self._is_held = False

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._channels)

    def wake(self, resume: Resume) -> None:
        """Tell a clone who it is; its hello makes the link `ready`. Only before the first call."""
        assert self._transport is not None
        assert not self.ready.done()
        self._transport.write(pack(resume.fields()))

    def call(self, request: AgentRequest) -> "asyncio.Future[SandboxResult]":
        """Send a request after those before it; the future fails with SandboxError."""
        refused = self._refusal(request)
        if refused is None and len(self._line) >= LINE_MAX:
            refused = SandboxError("refused", f"{LINE_MAX} calls wait already")
        if refused is not None:
            return self._failed(refused)
        about: AnswerChannel | CollectedJob
        if isinstance(request, ExecRequest | PythonRequest):
            about = CollectedJob(request, self._output_cap, self._loop)
            fields = about.fields()
        else:
            about = AnswerChannel(request, self._loop)
            fields = answer_fields(request)
        self._line.append(about)
        self._waiting[id(about)] = fields
        if len(self._line) == 1:
            self._advance()
        answer: asyncio.Future[Any] = about.answer
        return answer

    def ask(self, request: AskRequest) -> "asyncio.Future[FileResult]":
        """Send a question at once; the future fails with SandboxError."""
        refused = self._refusal(request)
        if refused is None and self._count(AnswerChannel) >= ASKS_MAX:
            refused = SandboxError("refused", f"{ASKS_MAX} questions are open already")
        if refused is not None:
            return self._failed(refused)
        about = AnswerChannel(request, self._loop)
        self._open(about, answer_fields(request))
        return about.answer

    def start(self, command: Command) -> "asyncio.Future[Process]":
        """Start a program at once; the future fails with SandboxError."""
        refused = self._refusal(command)
        if refused is None and self._count(ProcessJob) >= COMMANDS_MAX:
            refused = SandboxError("refused", f"{COMMANDS_MAX} programs run already")
        if refused is not None:
            return self._failed(refused)
        about = ProcessJob(command, self._loop)
        self._open(about, about.fields())
        answer: asyncio.Future[Any] = about.answer
        return answer

    def hold(self) -> None:
        """Its sandbox is paused: no deadline runs."""
        self._is_held = True
        for channel in self._channels.values():
            self._watch(channel)

    def go_on(self) -> None:
        """Its sandbox runs again: what is under way has its whole time once more."""
        self._is_held = False
        for channel in self._channels.values():
            self._watch(channel)

    def fail(self, cause: str) -> None:
        """Break the link: everything that waits, and everything to come, is lost."""
        if self._lost is not None:
            return
        self._lost = cause
        if self._transport is not None:
            self._transport.abort()
        waiting: list[Conversation] = [*self._line]
        for channel in self._channels.values():
            if channel.timer is not None:
                channel.timer.cancel()
            waiting.append(channel.about)
        self._channels.clear()
        self._line.clear()
        self._waiting.clear()
        self._buffer.clear()
        if not self.ready.done():
            self.ready.set_exception(SandboxError("lost", cause))
            self.ready.exception()  # nobody may be waiting any more
        for about in waiting:
            about.lose(cause)
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
        if len(fields) < 2:
            raise GuestProtocolError("a frame without a channel")
        number = number_in(fields[1])
        channel = self._channels.get(number)
        if channel is None:
            raise GuestProtocolError("an answer that nobody asked for")
        if channel.about.take([fields[0], *fields[2:]]):
            self._close(number)

    def _greet(self, fields: list[bytes]) -> None:
        if fields[0] != b"hello" or len(fields) != 3 or number_in(fields[1]) != PROTOCOL:
            raise GuestProtocolError("no hello of this protocol")
        self.ready.set_result(fields[2][:32].decode(errors="replace"))

    def _open(self, about: Conversation, fields: list[bytes]) -> None:
        self._last += 1
        name = b"%d" % self._last
        channel = self._channels[self._last] = _Open(about)
        self._watch(channel)
        self._say([fields[0], name, *fields[1:]])
        if not isinstance(about, AnswerChannel):
            about.talk = lambda said: self._say([said[0], name, *said[1:]])
            about.begin()

    def _close(self, number: int) -> None:
        channel = self._channels.pop(number)
        if channel.timer is not None:
            channel.timer.cancel()
        if self._line and self._line[0] is channel.about:
            self._line.popleft()
            self._advance()

    def _advance(self) -> None:
        """Send the first call of the line."""
        if self._line:
            self._open(self._line[0], self._waiting.pop(id(self._line[0])))

    def _say(self, fields: list[bytes]) -> None:
        if self._lost is None and self._transport is not None:
            self._transport.write(pack(fields))

    def _count(self, kind: type) -> int:
        return sum(isinstance(channel.about, kind) for channel in self._channels.values())

    def _refusal(self, request: AskRequest | SandboxRequest | Command) -> SandboxError | None:
        if self._lost is not None or self._transport is None:
            return SandboxError("lost", self._lost or "not connected")
        if isinstance(request, WriteRequest) and len(request.content) > FILE_BYTES_MAX:
            return SandboxError("too_large", f"{len(request.content)} bytes")
        if isinstance(request, ExecRequest | Command):
            words = len(request.argv)
            if isinstance(request, Command):
                words += 2 * len(request.variables)
            if words > WORDS_MAX:
                return SandboxError("too_large", f"{words} words")
        return None

    def _failed(self, error: SandboxError) -> "asyncio.Future[Any]":
        answer: asyncio.Future[Any] = self._loop.create_future()
        answer.set_exception(error)
        return answer

    def _watch(self, channel: _Open) -> None:
        """Let its deadline run, from now."""
        if channel.timer is not None:
            channel.timer.cancel()
            channel.timer = None
        limit_s = channel.about.limit_s
        if limit_s is not None and not self._is_held:
            delay_s = limit_s + ANSWER_GRACE_S
            channel.timer = self._loop.call_later(delay_s, self._is_late, channel)

    def _is_late(self, channel: _Open) -> None:
        if channel.about.is_stalled:  # its end waits for our reader
            channel.timer = self._loop.call_later(ANSWER_GRACE_S, self._is_late, channel)
        else:
            self.fail(LATE)
