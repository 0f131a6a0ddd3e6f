"""Verbs of sandboxes. What is wanted is a row, which a node acts on; data passes through its door."""

import asyncio
import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Finding, Problem, conflict, invalid, not_found
from api.sandboxes import doors
from domain.errors import SecretUnavailable
from domain.tenant_sandboxes import OPEN_MAX, TEMPLATE, TENANT_LIMITS, SandboxState
from infra.clock import SystemClock
from infra.door_frames import DoorExec, DoorExecuted, DoorMeasure, DoorMeasured, DoorReason
from infra.logging import get_logger
from infra.vault import Vault, variables_context
from sandboxes.client import CallRefused
from stores import sandboxes as store
from stores.environments import Owner
from stores.sandboxes import Door
from stores.unit_of_work import AsyncConnection
from venusrl.models.sandboxes import (
    Executed,
    Sandbox,
    SandboxCreate,
    SandboxExec,
    SandboxMetrics,
    Template,
    Templates,
)

WAIT_S_MAX: Final = 30.0
"""Longest answer held open; below the usual idle timeout of proxies."""

POLL_S: Final = 0.1
"""How late a change is seen by one who waits for it, when its node could not be told."""

UNSUPPORTED: Final = {
    "fork": ("live_fork", "A running sandbox cannot be forked by this runtime: ask for n at once."),
    "snapshot": ("checkpoint", "This runtime keeps no image of a running sandbox's memory."),
}
"""Verb -> the capability that it needs, and what its lack means."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One sandbox and what is wanted of it."""

    sandbox_id: str
    desired: SandboxState


def sandbox_of(row: Any) -> Sandbox:
    """Wire form of a row; what has ended has no end ahead."""
    one = Sandbox.model_validate(row, from_attributes=True)
    return one.model_copy(update={"ends_at": None}) if row.state == "ended" else one


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: SandboxCreate
) -> dict[str, Any]:
    """Ask for a fork. Raises 422 for an unknown template, 409 beyond the project's limit."""
    if body.template != TEMPLATE:
        words = f"There is no template {body.template!r}; GET /v1/templates lists them."
        raise invalid([Finding("/template", "unknown_template", words)])
    taken = await store.open_count(connection, caller.project_id)
    if taken + body.n > OPEN_MAX:
        words = f"The project has {taken} sandboxes that have not ended; {OPEN_MAX} are its limit."
        raise conflict(words, "limit_reached")
    group_id = gateway.ids.new("sbg")
    values = {
        "group_id": group_id,
        "template": body.template,
        "lifetime_s": body.lifetime_s,
        "env_names": sorted(body.env),
        "env_sealed": _sealed(gateway, caller, group_id, body.env),
    }
    ids = [gateway.ids.new("sbx") for _ in range(body.n)]
    owner = Owner(caller.organization_id, caller.project_id)
    rows = await store.create(connection, owner, ids, values)
    return _group(group_id, rows)


async def started(
    gateway: Gateway, caller: ProjectCaller, group_id: str, wait_s: float
) -> dict[str, Any]:
    """The fork once all of it runs or has ended, or as it is after `wait_s`."""
    clock = SystemClock()
    end = clock.monotonic() + wait_s
    rows, open_doors = await _look(gateway, caller, group_id)
    if _waits(rows) and wait_s > 0:
        pokes = [asyncio.create_task(doors.poke(door, "", wait_s)) for door in open_doors]
        try:
            while _waits(rows) and clock.monotonic() < end:
                await _first(pokes)
                rows, _ = await _look(gateway, caller, group_id)
        finally:
            for poke in pokes:
                poke.cancel()
            await asyncio.gather(*pokes, return_exceptions=True)
    return _group(group_id, rows)


async def want(gateway: Gateway, caller: ProjectCaller, asked: Asked, wait_s: float) -> Sandbox:
    """Say what it shall be, and wait until it is. Raises 404, 409, 501."""
    row, door = await doors.need(gateway, caller, asked.sandbox_id)
    is_end = asked.desired is SandboxState.ENDED
    if not is_end:
        doors.check_live(row)
        _need_capability(door, "pause", "This runtime cannot pause a sandbox.")
    async with gateway.database.begin() as connection:
        row = await store.want(connection, caller.project_id, asked.sandbox_id, asked.desired)
    if row is None:
        raise not_found("sandbox", asked.sandbox_id)
    refused = None
    if door is not None and row.state != asked.desired.value and wait_s > 0:
        refused = await doors.poke(door, asked.sandbox_id, wait_s)
    async with gateway.database.begin() as connection:
        row = await store.find(connection, caller.project_id, asked.sandbox_id)
    assert row is not None, "sandboxes are kept for weeks"
    if refused is not None and refused.reason is DoorReason.NOT_PAUSED:
        raise conflict(f"It could not be paused: {refused.detail}")
    if row.state == "ended" and not is_end:
        raise doors.ended(row)
    return sandbox_of(row)


async def extend(
    gateway: Gateway, caller: ProjectCaller, sandbox_id: str, lifetime_s: float
) -> Sandbox:
    """Another lifetime from now on. Raises 404, 409."""
    async with gateway.database.begin() as connection:
        row = await store.extend(connection, caller.project_id, sandbox_id, lifetime_s)
        if row is None:
            raise not_found("sandbox", sandbox_id)
        if row.state == "ended":
            raise doors.ended(row)
    return sandbox_of(row)


async def execute(
    gateway: Gateway, caller: ProjectCaller, sandbox_id: str, body: SandboxExec, key: str
) -> Executed:
    """Run a command; the same key runs it once. Raises the problem of `doors.ask`."""
    argv = ("/bin/sh", "-c", body.command) if isinstance(body.command, str) else body.command
    frame = DoorExec(
        request=0,
        sandbox_id=sandbox_id,
        key=key,
        argv=tuple(argv),
        stdin=_bytes_of(body),
        env=body.env,
        timeout_s=body.timeout_s,
        output_bytes=body.output_bytes,
    )
    answer = await doors.ask(gateway, caller, sandbox_id, frame, body.timeout_s + doors.GRACE_S)
    assert isinstance(answer, DoorExecuted)
    return Executed(
        end="timed_out" if answer.timed_out else "exited",
        exit_code=answer.exit_code,
        stdout=_text(answer.stdout, body.encoding),
        stderr=_text(answer.stderr, body.encoding),
        encoding=body.encoding,
        is_truncated=answer.truncated_bytes > 0,
        truncated_bytes=answer.truncated_bytes,
        wall_s=answer.wall_s,
    )


async def measure(gateway: Gateway, caller: ProjectCaller, sandbox_id: str) -> SandboxMetrics:
    """What it costs now. Raises the problem of `doors.ask`."""
    answer = await doors.ask(gateway, caller, sandbox_id, DoorMeasure(0, sandbox_id))
    assert isinstance(answer, DoorMeasured)
    return SandboxMetrics(
        at=SystemClock().now(),
        private_bytes=answer.private_bytes,
        swapped_bytes=answer.swapped_bytes,
        shared_bytes=answer.shared_bytes,
        overhead_bytes=answer.overhead_bytes,
        declared_bytes=TENANT_LIMITS.memory_bytes,
        processes=answer.processes,
        cpu_s=answer.cpu_s,
    )


async def refuse(gateway: Gateway, caller: ProjectCaller, sandbox_id: str, verb: str) -> None:
    """501 for a verb that its runtime lacks, with the reason; 404 and 409 before that."""
    row, door = await doors.need(gateway, caller, sandbox_id)
    doors.check_live(row)
    capability, words = UNSUPPORTED[verb]
    _need_capability(door, capability, words)
    raise Problem(501, "not_supported", f"This platform does not {verb} sandboxes yet.")


async def templates(gateway: Gateway) -> Templates:
    """What the open nodes start sandboxes from."""
    async with gateway.database.begin() as connection:
        found = await store.doors(connection)
    runtimes = {door.runtime: door for door in found}
    return Templates(
        data=[
            Template(
                name=TEMPLATE,
                runtime=runtime,
                nodes=sum(one.runtime == runtime for one in found),
                can=door.facts["can"],
                limits=door.facts["limits"],
            )
            for runtime, door in sorted(runtimes.items())
        ]
    )


def _need_capability(door: Door | None, capability: str, words: str) -> None:
    if door is not None and not door.facts["can"][capability]:
        raise Problem(501, "not_supported", f"{words} Its runtime is {door.runtime}.")


async def _first(pokes: list["asyncio.Task[CallRefused | None]"]) -> None:
    """Wait for a node to have looked, or for a moment."""
    open_pokes = [poke for poke in pokes if not poke.done()]
    if not open_pokes:
        await asyncio.sleep(POLL_S)
        return
    await asyncio.wait(open_pokes, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)


async def _look(
    gateway: Gateway, caller: ProjectCaller, group_id: str
) -> tuple[Sequence[Any], Sequence[Door]]:
    async with gateway.database.begin() as connection:
        rows = await store.of_group(connection, caller.project_id, group_id)
        return rows, await store.doors(connection)


def _waits(rows: Sequence[Any]) -> bool:
    return any(row.state == "requested" for row in rows)


def _group(group_id: str, rows: Sequence[Any]) -> dict[str, Any]:
    return {"id": group_id, "sandboxes": [sandbox_of(row).model_dump(mode="json") for row in rows]}


def _sealed(
    gateway: Gateway, caller: ProjectCaller, group_id: str, env: dict[str, str]
) -> bytes | None:
    """Variables for the row. Raises 503 without a usable key."""
    if not env:
        return None
    try:
        context = variables_context(caller.project_id, group_id)
        return Vault.of(gateway.settings).seal(json.dumps(env), context)
    except SecretUnavailable as error:
        get_logger().error("sandbox.not_sealed", cause=str(error))
        detail = f"This installation cannot keep variables: {error}. `venus doctor` says more."
        raise Problem(503, "unavailable", detail) from error


def _bytes_of(body: SandboxExec) -> bytes:
    if body.encoding == "utf-8":
        return body.stdin.encode(errors="replace")
    try:
        return base64.b64decode(body.stdin, validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid([Finding("/stdin", "not_base64", "This is no base64.")]) from error


def _text(data: bytes, encoding: str) -> str:
    if encoding == "base64":
        return base64.b64encode(data).decode()
    return data.decode("utf-8", errors="replace")
