"""Verbs of checkpoints."""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.jobs.views import matches
from api.operations.service import operation_of
from api.problems import Finding, Problem, conflict, invalid, not_found
from domain.errors import PayloadUnreadable
from infra.names import EXPORT_CHECKPOINT, GENERATE
from stores import checkpoints
from stores.unit_of_work import AsyncConnection
from venusrl.models.checkpoints import (
    Bundle,
    Checkpoint,
    CheckpointPatch,
    ExportRequest,
    File,
    GenerateRequest,
)

RANGE: Final = re.compile(r"bytes=([0-9]*)-([0-9]*)", re.ASCII)
"""One range; several in one request are answered whole, as the protocol allows."""

POSITION_MAX: Final = 10**18
"""Beyond any file; a position with more digits than a number here may have counts as this."""


@dataclass(frozen=True, slots=True)
class Part:
    """What of a file is sent: first byte, byte after the last, and whether it is less than all."""

    start: int
    stop: int
    is_partial: bool


def checkpoint_of(row: Any) -> Checkpoint:
    """Wire form of a checkpoint row; where its files lie stays inside."""
    files = [File(name=one["name"], size=one["size"], sha256=one["sha"]) for one in row.files]
    columns = {name: value for name, value in row._mapping.items() if name != "files"}
    bundle = None if row.export is None else _bundle_of(row.export)
    return Checkpoint.model_validate(columns | {"files": files, "export": bundle})


def _bundle_of(stored: Mapping[str, Any]) -> Bundle:
    return Bundle(
        format=stored["format"], name=stored["name"], size=stored["size"], sha256=stored["sha"]
    )


def etag_of(row: Any) -> str:
    """Changes with everything that PATCH may change, and with the state."""
    text = json.dumps([row.state, row.keep, row.ttl_days])
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"'


async def need(
    connection: AsyncConnection, caller: ProjectCaller, checkpoint_id: str, lock: bool = False
) -> Any:
    """The checkpoint's row. Raises 404."""
    row = await checkpoints.find(connection, caller.project_id, checkpoint_id, lock=lock)
    if row is None:
        raise not_found("checkpoint", checkpoint_id)
    return row


def file_of(row: Any, name: str) -> dict[str, Any]:
    """The entry of one file. Names are looked up, never joined to a path. Raises 404 or 409."""
    if row.state != "ready":
        raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    for one in row.files:
        if one["name"] == name:
            found: dict[str, Any] = one
            return found
    raise not_found("file", name, [one["name"] for one in row.files])


def bundle_file(row: Any) -> dict[str, Any]:
    """The exported bundle of a checkpoint. Raises 409."""
    if row.state != "ready":
        raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    if row.export is None:
        detail = "The checkpoint was not exported yet: POST /v1/checkpoints/{id}/export makes it."
        raise conflict(detail, "not_exported")
    return dict(row.export)


def part_of(header: str | None, size: int) -> Part:
    """The bytes that a Range header asks for. Raises 416 for those beyond the file."""
    asked = RANGE.fullmatch(header or "")
    if asked is None or asked.groups() == ("", ""):
        return Part(0, size, is_partial=False)
    first, last = asked.groups()
    if first == "":
        start, stop = max(0, size - _position(last)), size
    else:
        start, stop = _position(first), min(size, _position(last) + 1) if last else size
    if start >= stop:
        raise Problem(416, "range_not_satisfiable", f"The file has {size} bytes.")
    return Part(start, stop, is_partial=True)


def _position(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(POSITION_MAX)) else POSITION_MAX


async def content(gateway: Gateway, file: dict[str, Any], part: Part) -> AsyncIterator[bytes]:
    """The bytes of a part; a file that cannot be read is a problem before the first byte is sent."""
    if part.start == part.stop:
        return _joined(b"", None)
    chunks = gateway.blobs.stream(file["uri"], (part.start, part.stop))
    try:
        first = await anext(chunks, b"")
    except PayloadUnreadable as error:
        raise Problem(500, "payload_unreadable", f"The stored file is damaged: {error}") from error
    return _joined(first, chunks)


async def _joined(first: bytes, rest: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    if first:
        yield first
    if rest is not None:
        async for chunk in rest:
            yield chunk


async def patch(
    connection: AsyncConnection,
    caller: ProjectCaller,
    asked: tuple[str, CheckpointPatch],
    etag: str | None,
) -> Any:
    """Keep it or not, let it expire or not; with If-Match only if nobody changed that meanwhile."""
    checkpoint_id, body = asked
    row = await need(connection, caller, checkpoint_id, lock=True)
    if etag is not None and not matches(etag_of(row), etag):
        raise Problem(412, "precondition_failed", "The checkpoint changed since it was read.")
    if row.state != "ready":
        raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    if "keep" in body.model_fields_set and body.keep is None:
        raise invalid([Finding("/keep", "bool_type", "Say true or false.")])
    keep = row.keep if body.keep is None else body.keep
    ttl_days = body.ttl_days if "ttl_days" in body.model_fields_set else row.ttl_days
    await checkpoints.change(connection, checkpoint_id, keep=keep, ttl_days=ttl_days)
    return await need(connection, caller, checkpoint_id)


async def delete(connection: AsyncConnection, caller: ProjectCaller, checkpoint_id: str) -> None:
    """Expire it, kept or not. Raises 409 while something needs it; twice is once."""
    row = await need(connection, caller, checkpoint_id, lock=True)
    if row.state == "expired":
        return
    if row.state == "writing":
        raise conflict("The checkpoint is being written.", "checkpoint_not_ready")
    use = await checkpoints.use_of(connection, checkpoint_id)
    if use is not None:
        raise conflict(use, "in_use")
    await checkpoints.expire(connection, checkpoint_id)


async def export(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, ExportRequest],
) -> dict[str, Any]:
    """Insert the operation; a chore makes the bundle."""
    checkpoint_id, body = asked
    row = await need(connection, caller, checkpoint_id)
    if body.format == "peft":
        message = "The checkpoint has no adapter: all weights are trained in this version."
        hint = "Use safetensors; the bundle holds the whole model."
        raise invalid([Finding("/format", "no_adapter", message, hint)])
    if row.state != "ready":
        raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    request = {"checkpoint_id": checkpoint_id, "format": body.format}
    started = await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), EXPORT_CHECKPOINT, request
    )
    return operation_of(started).model_dump(mode="json")


async def generate(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, GenerateRequest],
) -> dict[str, Any]:
    """Insert the operation; a chore takes it up."""
    checkpoint_id, body = asked
    row = await need(connection, caller, checkpoint_id)
    if row.state != "ready":
        raise conflict(f"The checkpoint is {row.state}.", "checkpoint_not_ready")
    request = {"checkpoint_id": checkpoint_id, **body.model_dump(mode="json")}
    started = await checkpoints.start_operation(
        connection, caller.project_id, gateway.ids.new("op"), GENERATE, request
    )
    return operation_of(started).model_dump(mode="json")
