"""Calls at the door of the node that holds a sandbox, and what its refusals mean to a client."""

from typing import Any, Final, NoReturn

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Problem, conflict, not_found
from domain.tenant_sandboxes import SandboxState
from infra.door_frames import DoorAnswer, DoorCall, DoorExec, DoorLook, DoorReason, DoorWrite
from infra.logging import get_logger
from sandboxes.client import CallRefused, DoorAddress, DoorClosed, call
from stores import sandboxes as store
from stores.sandboxes import Door

ANSWER_S: Final = 20.0
"""Of a call that only moves bytes or stops processes."""

GRACE_S: Final = 15.0
"""Beyond a command's own time: commands before it in the same sandbox end first, or a retry waits."""

LOOK_S: Final = 5.0
"""A node writes down at once what it has lost."""

STATUSES: Final[dict[DoorReason, tuple[int, str]]] = {
    DoorReason.PAUSED: (409, "sandbox_paused"),
    DoorReason.NOT_PAUSED: (409, "conflict"),
    DoorReason.NOT_FOUND: (404, "not_found"),
    DoorReason.DENIED: (403, "forbidden"),
    DoorReason.TOO_LARGE: (413, "too_large"),
    DoorReason.BUSY: (429, "busy"),
    DoorReason.OTHER_CALL: (409, "idempotency_conflict"),
    DoorReason.FORGOTTEN: (409, "idempotency_conflict"),
}


def address_of(door: Door) -> DoorAddress:
    """Where to call, and the proof's key."""
    return DoorAddress(door.host_id, door.epoch, door.address, door.key)


async def need(
    gateway: Gateway, caller: ProjectCaller, sandbox_id: str, *, noted: bool = False
) -> tuple[Any, Door | None]:
    """The row and the door of its node, if it has an open one. Raises 404."""
    async with gateway.database.begin() as connection:
        row = await store.find(connection, caller.project_id, sandbox_id, noted=noted)
        if row is None:
            raise not_found("sandbox", sandbox_id)
        found = [] if row.host_id is None else await store.doors(connection, row.host_id)
    return row, found[0] if found else None


async def ask(
    gateway: Gateway,
    caller: ProjectCaller,
    sandbox_id: str,
    frame: DoorCall,
    timeout_s: float = ANSWER_S,
) -> DoorAnswer:
    """Ask the node that holds it. Raises the problem that the sandbox's state or the node gives."""
    is_noted = isinstance(frame, (DoorExec, DoorWrite))
    row, door = await need(gateway, caller, sandbox_id, noted=is_noted)
    check_live(row)
    if door is None:
        raise _away("The agent of its node is being replaced; it says what became of it.")
    try:
        return await call(address_of(door), frame, timeout_s)
    except DoorClosed as closed:
        get_logger().info("door.closed", sandbox_id=sandbox_id, cause=str(closed))
        raise _away(
            "Its node did not answer in time; the same request may be sent again."
        ) from closed
    except CallRefused as refused:
        if refused.reason is DoorReason.UNKNOWN:
            await _gone(gateway, caller, sandbox_id)
        status, code = STATUSES[refused.reason]
        raise Problem(
            status, code, refused.detail, retry_after_s=1 if status == 429 else None
        ) from refused


def check_live(row: Any) -> None:
    """Raise 409 for a sandbox that has not started or has ended."""
    if row.state == SandboxState.ENDED.value:
        raise ended(row)
    if row.state == SandboxState.REQUESTED.value:
        raise conflict("It has not started yet.", "sandbox_not_running")


def ended(row: Any) -> Problem:
    """409: why there is nothing to act on."""
    return conflict(f"It has ended: {row.cause}: {row.detail}", "sandbox_ended")


async def poke(door: Door, sandbox_id: str, timeout_s: float) -> CallRefused | None:
    """Tell a node to look now; what it could not do is returned. A node that is away looks later."""
    try:
        await call(address_of(door), DoorLook(0, sandbox_id), timeout_s)
    except DoorClosed as closed:
        get_logger().info("door.closed", host_id=door.host_id, cause=str(closed))
    except CallRefused as refused:
        return refused
    return None


async def _gone(gateway: Gateway, caller: ProjectCaller, sandbox_id: str) -> NoReturn:
    """The node does not hold it (any more): its row says why, at the latest with the next look."""
    row, door = await need(gateway, caller, sandbox_id)
    if row.state != SandboxState.ENDED.value and door is not None:
        await poke(door, sandbox_id, LOOK_S)
        row, _ = await need(gateway, caller, sandbox_id)
    if row.state == SandboxState.ENDED.value:
        raise ended(row)
    raise _away("Its node is about to say what became of it.")


def _away(detail: str) -> Problem:
    return Problem(503, "unavailable", detail, retry_after_s=1)
