"""Verbs of checkpoints."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.operations.service import operation_of
from api.problems import Problem, conflict, not_found
from domain.errors import PayloadUnreadable
from infra.names import GENERATE
from stores import checkpoints
from stores.unit_of_work import AsyncConnection
from venusrl.models.checkpoints import Checkpoint, File, GenerateRequest

RANGE: Final = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$")
"""One range; several in one request are answered whole, as the protocol allows."""


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
    return Checkpoint.model_validate(columns | {"files": files})


async def need(connection: AsyncConnection, caller: ProjectCaller, checkpoint_id: str) -> Any:
    """The checkpoint's row. Raises 404."""
    row = await checkpoints.find(connection, caller.project_id, checkpoint_id)
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


def part_of(header: str | None, size: int) -> Part:
    """The bytes that a Range header asks for. Raises 416 for those beyond the file."""
    asked = RANGE.match(header or "")
    if asked is None or asked.groups() == ("", ""):
        return Part(0, size, is_partial=False)
    first, last = asked.groups()
    if first == "":
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    if start >= stop:
        raise Problem(416, "range_not_satisfiable", f"The file has {size} bytes.")
    return Part(start, stop, is_partial=True)


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
