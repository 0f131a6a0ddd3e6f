"""`Sandbox` as user code gets it: each call travels to the parent, keyed by turn and ordinal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import cast, get_args

from venusrl.env._runner.channel import Channel, ChannelClosed
from venusrl.env.messages import Json
from venusrl.env.sandbox import (
    EXEC_TIMEOUT_S,
    FILE_BYTES_MAX,
    PYTHON_TIMEOUT_S,
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
from venusrl.env.wire import (
    BadRecord,
    Record,
    record_field,
    request_to_json,
    result_from_json,
    text_field,
)

SandboxCall = Callable[[SandboxRequest], Awaitable[SandboxResult]]
"""How a request reaches the node agent."""


class RemoteSandbox:
    """Implements `Sandbox` over any `SandboxCall`."""

    def __init__(self, call: SandboxCall) -> None:
        self._call = call

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = EXEC_TIMEOUT_S
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        words = tuple(argv)
        if not words or not all(isinstance(word, str) for word in words):
            raise SandboxError("denied", "argv must be a non-empty sequence of text")
        return cast(ExecResult, await self._call(ExecRequest(words, bytes(stdin), timeout_s)))

    async def python(self, source: str, *, timeout_s: float = PYTHON_TIMEOUT_S) -> ExecResult:
        """See `Sandbox.python`."""
        return cast(ExecResult, await self._call(PythonRequest(source, timeout_s)))

    async def read(self, path: str) -> bytes:
        """See `Sandbox.read`."""
        return cast(bytes, await self._call(ReadRequest(path)))

    async def write(self, path: str, content: bytes) -> None:
        """See `Sandbox.write`."""
        if len(content) > FILE_BYTES_MAX:
            raise SandboxError("too_large", f"{len(content)} bytes exceed {FILE_BYTES_MAX}")
        await self._call(WriteRequest(path, bytes(content)))


def keyed_calls(channel: Channel, instance: str, turn: int) -> SandboxCall:
    """Calls of one turn of an instance, counted from 0."""
    ordinal = -1

    async def call(request: SandboxRequest) -> SandboxResult:
        nonlocal ordinal
        ordinal += 1
        key: Mapping[str, Json] = {"instance": instance, "turn": turn, "ordinal": ordinal}
        return await _forward(channel, key, request)

    return call


def grading_calls(channel: Channel, grade: str, rollout: str) -> SandboxCall:
    """Calls that a reward makes on the grading sandbox of a rollout; the parent counts them."""

    async def call(request: SandboxRequest) -> SandboxResult:
        return await _forward(channel, {"grade": grade, "rollout": rollout}, request)

    return call


async def _forward(channel: Channel, key: Record, request: SandboxRequest) -> SandboxResult:
    try:
        frame = await channel.request({"t": "sandbox", **key, "request": request_to_json(request)})
        if "error" in frame:
            raise _error(record_field(frame, "error"))
        return result_from_json(request, frame.get("ok"))
    except (ChannelClosed, BadRecord) as error:
        raise SandboxError("lost", str(error)) from error


def _error(record: Record) -> SandboxError:
    reason = text_field(record, "reason")
    known = get_args(SandboxFailure)
    return SandboxError(
        cast(SandboxFailure, reason if reason in known else "lost"), text_field(record, "detail")
    )
