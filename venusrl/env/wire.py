"""How the kit's values cross to the environment process: JSON records in length-prefixed frames.

A frame is a big-endian uint32 length and that many bytes of UTF-8 JSON, one object. Both sides
treat the other as hostile input: every reader here checks types and raises `BadRecord`. Text is
cleaned of what UTF-8 cannot say; bytes travel as base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Final, Literal, cast

from venusrl.env.messages import Json, Message, Role, Rollout, Task, ToolCall
from venusrl.env.sandbox import (
    ExecRequest,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)
from venusrl.env.values import Unscorable, Value, as_value

FRAME_BYTES_MAX: Final = 16 << 20
"""Holds the largest file of a sandbox call in base64 with room to spare, and no more."""

ROLES: Final[frozenset[str]] = frozenset({"system", "user", "assistant", "tool"})
"""Every role that a message may have."""

Record = Mapping[str, Json]
"""One JSON object."""

_HEADER: Final = struct.Struct(">I")


class BadRecord(ValueError):
    """The other side, or a file, said something that is not a valid record."""


def encode_frame(record: Record) -> bytes:
    """One record as a frame; BadRecord when it is too large or not JSON."""
    try:
        body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON: {error}") from error
    if len(body) > FRAME_BYTES_MAX:
        raise BadRecord(f"a frame of {len(body)} bytes exceeds {FRAME_BYTES_MAX}")
    return _HEADER.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into records; holds at most one frame and one read of it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[dict[str, Json]]:
        """The records that this chunk completes; BadRecord ends the stream for good."""
        self._buffer += chunk
        records = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > FRAME_BYTES_MAX:
                raise BadRecord(f"a frame of {length} bytes exceeds {FRAME_BYTES_MAX}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            body = bytes(memoryview(self._buffer)[_HEADER.size : end])
            del self._buffer[:end]
            records.append(_object(body))
        return records


def _object(body: bytes) -> dict[str, Json]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"a frame is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise BadRecord("a frame is not an object")
    return record


def clean_text(text: str | bytes | bytearray) -> str:
    """Text that UTF-8 can say: undecodable bytes and lone surrogates are replaced."""
    if isinstance(text, str):
        return text.encode("utf-8", errors="replace").decode()
    return bytes(text).decode("utf-8", errors="replace")


def text_field(record: Record, name: str) -> str:
    """A field that must be text."""
    value = record.get(name)
    if not isinstance(value, str):
        raise BadRecord(f"{name} must be text")
    return value


def int_field(record: Record, name: str) -> int:
    """A field that must be an integer."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRecord(f"{name} must be an integer")
    return value


def float_field(record: Record, name: str) -> float:
    """A field that must be a number."""
    value = record.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadRecord(f"{name} must be a number")
    return float(value)


def record_field(record: Record, name: str) -> Record:
    """A field that must be an object; absent is empty."""
    value = record.get(name, {})
    if not isinstance(value, dict):
        raise BadRecord(f"{name} must be an object")
    return cast("Record", value)


def list_field(record: Record, name: str) -> list[Json]:
    """A field that must be an array; absent is empty."""
    value = record.get(name, [])
    if not isinstance(value, list):
        raise BadRecord(f"{name} must be an array")
    return value


def bytes_field(record: Record, name: str) -> bytes:
    """A field that must be base64."""
    try:
        return base64.b64decode(text_field(record, name), validate=True)
    except binascii.Error as error:
        raise BadRecord(f"{name} must be base64") from error


def as_record(value: Json, what: str) -> Record:
    """A value that must be an object."""
    if not isinstance(value, dict):
        raise BadRecord(f"{what} must be an object")
    return cast("Record", value)


def text_map(record: Record, name: str) -> dict[str, str]:
    """A field that must map text to text; absent is empty."""
    pairs = record_field(record, name)
    if not all(isinstance(value, str) for value in pairs.values()):
        raise BadRecord(f"{name} must hold text only")
    return {key: cast("str", value) for key, value in pairs.items()}


def b64(content: bytes) -> str:
    """Bytes as they travel in a record."""
    return base64.b64encode(content).decode()


def message_to_json(message: Message) -> dict[str, Json]:
    """A message as a record, empty fields left out."""
    record: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        record["tool_calls"] = [_call_to_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    if message.reasoning:
        record["reasoning"] = message.reasoning
    return record


def message_from_json(value: Json) -> Message:
    """A message of a record."""
    record = as_record(value, "a message")
    role = text_field(record, "role")
    if role not in ROLES:
        raise BadRecord(f"unknown role {role[:32]}")
    calls = tuple(_call_from_json(call) for call in list_field(record, "tool_calls"))
    call_id = record.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise BadRecord("tool_call_id must be text")
    content = clean_text(text_field(record, "content"))
    reasoning = clean_text(text_field(record, "reasoning")) if "reasoning" in record else ""
    return Message(cast("Role", role), content, calls, call_id, reasoning)


def _call_to_json(call: ToolCall) -> dict[str, Json]:
    record: dict[str, Json] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return record if call.error is None else {**record, "error": call.error}


def _call_from_json(value: Json) -> ToolCall:
    record = as_record(value, "a tool call")
    error = record.get("error")
    if error is not None and not isinstance(error, str):
        raise BadRecord("the error of a tool call must be text")
    name, arguments = text_field(record, "name"), text_field(record, "arguments")
    return ToolCall(text_field(record, "id"), name, arguments, error)


def messages_from_json(values: Sequence[Json]) -> tuple[Message, ...]:
    """Messages of an array of records."""
    return tuple(message_from_json(value) for value in values)


def task_to_json(task: Task) -> dict[str, Json]:
    """A task as a record."""
    return {
        "id": task.id,
        "prompt": [message_to_json(message) for message in task.prompt],
        "answer": task.answer,
        "metadata": task.metadata,
        "files": task.files,
    }


def task_from_json(value: Json) -> Task:
    """A task of a record; a prompt that is plain text is one user message."""
    record = as_record(value, "a task")
    task_id = text_field(record, "id")
    if not task_id or len(task_id) > 256:
        raise BadRecord("a task's id must have 1 to 256 characters")
    prompt = record.get("prompt")
    if isinstance(prompt, str):
        messages: tuple[Message, ...] = (Message("user", clean_text(prompt)),)
    elif isinstance(prompt, list):
        messages = messages_from_json(prompt)
    else:
        raise BadRecord("prompt must be text or an array of messages")
    unknown = sorted(set(record) - {"id", "prompt", "answer", "metadata", "files"})
    if unknown:
        raise BadRecord(f"unknown field {unknown[0][:64]}")
    metadata, files = record_field(record, "metadata"), text_map(record, "files")
    return Task(task_id, messages, record.get("answer"), metadata, files)


def rollout_to_json(rollout: Rollout) -> dict[str, Json]:
    """A finished rollout as a record."""
    return {
        "id": rollout.id,
        "index": rollout.index,
        "task": task_to_json(rollout.task),
        "messages": [message_to_json(message) for message in rollout.messages],
        "end": rollout.end,
        "turns": rollout.turns,
        "state": rollout.state,
        "artefacts": rollout.artefacts,
    }


def rollout_from_json(value: Json) -> Rollout:
    """A finished rollout of a record."""
    record = as_record(value, "a rollout")
    return Rollout(
        id=text_field(record, "id"),
        index=int_field(record, "index"),
        task=task_from_json(record.get("task")),
        messages=messages_from_json(list_field(record, "messages")),
        end=text_field(record, "end"),
        turns=int_field(record, "turns"),
        state=record.get("state"),
        artefacts=text_map(record, "artefacts"),
    )


def value_to_json(value: Value) -> Json:
    """A reward's value as JSON: a number, or an object with the reason."""
    if isinstance(value, Unscorable):
        return {"unscorable": value.reason, "detail": value.detail}
    return value


def value_from_json(value: Json) -> Value:
    """A reward's value of JSON, checked again: the sender runs an author's code."""
    if isinstance(value, dict):
        record = cast("Record", value)
        return as_value(Unscorable(text_field(record, "unscorable"), text_field(record, "detail")))
    return as_value(value)


def request_to_json(request: SandboxRequest) -> dict[str, Json]:
    """A sandbox call as a record."""
    match request:
        case ExecRequest(argv, stdin, timeout_s):
            return {
                "verb": "exec",
                "argv": list(argv),
                "stdin": b64(stdin),
                "timeout_s": timeout_s,
            }
        case PythonRequest(source, timeout_s):
            return {"verb": "python", "source": source, "timeout_s": timeout_s}
        case ReadRequest(path):
            return {"verb": "read", "path": path}
        case WriteRequest(path, content):
            return {"verb": "write", "path": path, "content": b64(content)}


def request_from_json(value: Json) -> SandboxRequest:
    """A sandbox call of a record."""
    record = as_record(value, "a sandbox call")
    verb = cast("Literal['exec', 'python', 'read', 'write']", text_field(record, "verb"))
    if verb == "exec":
        argv = list_field(record, "argv")
        if not argv or not all(isinstance(word, str) for word in argv):
            raise BadRecord("argv must be a non-empty array of text")
        words = tuple(cast("str", word) for word in argv)
        return ExecRequest(words, bytes_field(record, "stdin"), float_field(record, "timeout_s"))
    if verb == "python":
        return PythonRequest(text_field(record, "source"), float_field(record, "timeout_s"))
    if verb == "read":
        return ReadRequest(text_field(record, "path"))
    if verb == "write":
        return WriteRequest(text_field(record, "path"), bytes_field(record, "content"))
    raise BadRecord(f"unknown sandbox verb {str(verb)[:32]}")


def result_to_json(result: SandboxResult) -> Json:
    """A sandbox call's result as JSON."""
    if isinstance(result, ExecResult):
        return {
            "exit_code": result.exit_code,
            "stdout": b64(result.stdout),
            "stderr": b64(result.stderr),
            "truncated_bytes": result.truncated_bytes,
            "timed_out": result.timed_out,
        }
    return None if result is None else b64(result)


def result_from_json(request: SandboxRequest, value: Json) -> SandboxResult:
    """The result of the given call."""
    if isinstance(request, WriteRequest):
        return None
    if isinstance(request, ReadRequest):
        return bytes_field({"content": value}, "content")
    record = as_record(value, "a command's result")
    return ExecResult(
        int_field(record, "exit_code"),
        bytes_field(record, "stdout"),
        bytes_field(record, "stderr"),
        int_field(record, "truncated_bytes"),
        record.get("timed_out") is True,
    )
