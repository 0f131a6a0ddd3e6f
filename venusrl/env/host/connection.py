"""The parent's end of one runner process: calls with deadlines, its heartbeat, its end.

| task | consumes | ends with |
|---|---|---|
| read | frames of the runner | the process: every waiting call fails with the cause |
| read errors | raw output below Python | the process |
| watch | time | the process, or the first fault |

The runner executes user code, so whatever it says is checked; the first thing that no runner says
kills it. A fault is final: the process is dead when callers see it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast, get_args

from venusrl.env.host.ports import (
    Cause,
    EnvironmentCrashed,
    EnvironmentFault,
    EnvironmentHung,
    EnvironmentRaised,
    ProtocolError,
    SandboxLost,
)
from venusrl.env.messages import Json
from venusrl.env.redaction import Redactor
from venusrl.env.wire import (
    BadRecord,
    FrameDecoder,
    Record,
    clean_text,
    encode_frame,
    float_field,
    int_field,
    list_field,
    record_field,
    text_field,
)

READ_BYTES: Final = 1 << 16
"""One pipe's worth; more would only wait in memory."""

CALL_GRACE_S: Final = 5.0
"""The runner ends a call at its limit itself; an answer this much later will not come any more."""

WATCH_S: Final = 0.25
"""How often silence is counted. Each look counts at most twice this, so that a stop of this very
process is not taken for silence of the other."""

EXIT_WAIT_S: Final = 5.0
"""The kernel ends a killed process at once; only a stuck disk or debugger makes it take longer."""

PARTS_MAX: Final = 1 << 20
"""Items that one call may stream; the runner's own limit on tasks is below it."""

CALLS_MAX: Final = 1024
"""Requests of the runner served at once; beyond it the runner waits."""

ERROR_LINES_KEPT: Final = 40
"""Lines of raw output told with a crash."""

LINE_BYTES_MAX: Final = 8192
"""Longer raw lines are cut."""

LogSink = Callable[[str, str], None]
"""Takes one line of user code's output: the instance it belongs to, empty if unknown, and text."""

RequestHandler = Callable[[Record], Awaitable[Record]]
"""Serves one request of the runner, gives the fields of its `result` frame."""


@dataclass(slots=True)
class _Call:
    future: asyncio.Future[Json]
    patience_s: float
    items: list[Json] = field(default_factory=list)


class RunnerConnection:
    """One runner process and the calls to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        serve: RequestHandler,
        log: LogSink,
        blocked_s: float,
        *,
        redactor: Redactor | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self.fault: EnvironmentFault | None = None
        self.lag_s = 0.0
        self.worst_lag_s = 0.0
        self.pid = process.pid
        self._process = process
        self._serve = serve
        self._log = log
        self._blocked_s = blocked_s
        self._silent_s = 0.0
        self._next_id = 0
        self._calls: dict[int, _Call] = {}
        self._served: set[asyncio.Task[None]] = set()
        self._error_lines: deque[str] = deque(maxlen=ERROR_LINES_KEPT)
        self._tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._read_errors()),
            asyncio.create_task(self._watch()),
        ]

    async def call(
        self, method: str, params: Mapping[str, Json], limit_s: float, *, may_block: bool = False
    ) -> tuple[Json, list[Json]]:
        """The answer of one request and the items streamed before it; raises its fault.

        `may_block`: this method's user code may hold the runner's loop up to the limit.
        """
        if self.fault is not None:
            raise self.fault
        self._next_id += 1
        number = self._next_id
        bound_s = limit_s + CALL_GRACE_S
        call = _Call(asyncio.get_running_loop().create_future(), bound_s if may_block else 0.0)
        self._calls[number] = call
        frame: Record = {"t": "call", "id": number, "method": method, "params": params}
        try:
            async with asyncio.timeout(bound_s):
                await self._send(frame)
                return await call.future, call.items
        except BadRecord as error:
            raise EnvironmentRaised("bad_frame", f"{method}: {error}") from error
        except TimeoutError as error:
            raise EnvironmentHung("call_timeout", f"{method} gave no answer in time") from error
        finally:
            del self._calls[number]
            if call.future.cancel() or call.future.cancelled():
                self._forget(number)
            else:
                call.future.exception()  # Marks it as seen; the caller may have another error.

    async def stop(self) -> None:
        """Kill the process and wait for its end."""
        self.fail(EnvironmentCrashed("stopped", "the environment process was stopped"))
        await asyncio.gather(*self._tasks, *self._served, return_exceptions=True)

    def fail(self, fault: EnvironmentFault) -> None:
        """End the process for this reason; only the first reason counts."""
        if self.fault is not None:
            return
        self.fault = fault = self.struck(fault)
        if self._process.returncode is None:
            self._process.kill()
        for call in self._calls.values():
            if not call.future.done():
                call.future.set_exception(fault)
        for task in self._served:
            task.cancel()
        self._tasks[2].cancel()

    def struck(self, fault: EnvironmentFault) -> EnvironmentFault:
        """The fault without secrets: its detail may hold what user code said."""
        return type(fault)(fault.cause, self._redactor.text(fault.detail))

    async def _send(self, frame: Record) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(encode_frame(frame))
            await stdin.drain()
        except ConnectionError as error:
            await asyncio.wait({self._tasks[0]}, timeout=EXIT_WAIT_S)
            raise self.fault or EnvironmentCrashed("process_exited", str(error)) from error

    def _forget(self, number: int) -> None:
        """Tell the runner that nobody waits any more, without waiting for it."""
        stdin = self._process.stdin
        if self.fault is None and stdin is not None and not stdin.is_closing():
            stdin.write(encode_frame({"t": "cancel", "id": number}))

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        decoder = FrameDecoder()
        try:
            while chunk := await stdout.read(READ_BYTES):
                self._silent_s = 0.0
                for frame in decoder.feed(chunk):
                    await self._take(frame)
        except BadRecord as error:
            self.fail(ProtocolError("bad_frame", str(error)))
        await self._ended()

    async def _take(self, frame: Record) -> None:
        match frame.get("t"):
            case "result":
                self._resolve(frame)
            case "part":
                call = self._calls.get(int_field(frame, "id"))
                if call is not None:
                    call.items += list_field(frame, "items")
                    if len(call.items) > PARTS_MAX:
                        raise BadRecord(f"more than {PARTS_MAX} items")
            case "beat":
                self.lag_s = float_field(frame, "lag_s")
                self.worst_lag_s = max(self.worst_lag_s, self.lag_s)
            case "log":
                text = self._redactor.text(clean_text(text_field(frame, "text")))
                self._log(self._redactor.text(text_field(frame, "instance")), text)
            case "sandbox" | "judge":
                await self._start_serving(frame)
            case _:
                raise BadRecord("an unknown kind of frame")

    def _resolve(self, frame: Record) -> None:
        call = self._calls.get(int_field(frame, "id"))
        if call is None or call.future.done():
            return
        if "error" not in frame:
            call.future.set_result(frame.get("ok"))
            return
        error = record_field(frame, "error")
        fault = _fault(text_field(error, "cause"), text_field(error, "detail"))
        call.future.set_exception(self.struck(fault))

    async def _start_serving(self, frame: Record) -> None:
        if len(self._served) >= CALLS_MAX:
            await asyncio.wait(self._served, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._serve_one(int_field(frame, "id"), frame))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve_one(self, number: int, frame: Record) -> None:
        try:
            answer = await self._serve(frame)
            await self._send({**answer, "t": "result", "id": number})
        except BadRecord as error:
            self.fail(ProtocolError("bad_frame", str(error)))
        except EnvironmentFault:
            pass  # The process ended; its calls already failed with the cause.

    async def _ended(self) -> None:
        """The stream is over: the process has ended, or must."""
        try:
            async with asyncio.timeout(EXIT_WAIT_S):
                code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        await asyncio.wait({self._tasks[1]}, timeout=EXIT_WAIT_S)
        said = "; ".join(self._error_lines)
        if code < 0 or code > 128:
            signal = -code if code < 0 else code - 128
            self.fail(EnvironmentCrashed("process_killed", f"signal {signal} {said}".strip()))
        else:
            self.fail(EnvironmentCrashed("process_exited", f"exit code {code} {said}".strip()))

    async def _read_errors(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        while chunk := await stderr.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LINE_BYTES_MAX + self._redactor.longest:
                # The end stays: a secret may have begun in it.
                rest = self._redactor.raw(rest)
                cut = len(rest) - self._redactor.longest
                lines, rest = [*lines, rest[:cut]], rest[cut:]
            self._error_output(lines)
        self._error_output([rest] if rest else [])

    def _error_output(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = clean_text(self._redactor.raw(line)[:LINE_BYTES_MAX])
            self._error_lines.append(text)
            self._log("", text)

    async def _watch(self) -> None:
        """Kill a runner whose loop stays blocked: no other instance of it could answer either."""
        loop = asyncio.get_running_loop()
        while self.fault is None:
            before = loop.time()
            await asyncio.sleep(WATCH_S)
            self._silent_s += min(loop.time() - before, 2 * WATCH_S)
            patience_s = max([self._blocked_s, *(one.patience_s for one in self._calls.values())])
            if self._silent_s > patience_s:
                detail = f"user code held the event loop for more than {patience_s:g} s"
                self.fail(EnvironmentHung("loop_blocked", detail))


def _fault(cause: str, detail: str) -> EnvironmentFault:
    """A fault that the runner reports, as the kind that its cause belongs to."""
    if cause not in get_args(Cause):
        raise BadRecord(f"unknown cause {cause[:64]}")
    known, text = cast(Cause, cause), clean_text(detail)
    match known:
        case "call_timeout":
            return EnvironmentHung(known, text)
        case "sandbox_lost":
            return SandboxLost(known, text)
        case _:
            return EnvironmentRaised(known, text)
