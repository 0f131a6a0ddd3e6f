"""Routes of sandboxes and templates."""

import json
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth.caller import Developer, Viewer
from api.bodies import read_limited
from api.gateway import GatewayDep
from api.idempotency import REPLAYED, IdempotencyKey, Once, run_once
from api.paging import Wanted, to_page
from api.sandboxes import doors, service
from api.sandboxes.service import WAIT_S_MAX, Asked
from domain.tenant_sandboxes import SandboxState
from infra.door_frames import DoorContent, DoorRead, DoorWrite
from stores import sandboxes as store
from venusrl.env.sandbox import FILE_BYTES_MAX
from venusrl.models.common import Page
from venusrl.models.sandboxes import (
    PATH_CHARS_MAX,
    Executed,
    Sandbox,
    SandboxCreate,
    SandboxExec,
    SandboxGroup,
    SandboxMetrics,
    SandboxTimeout,
    Templates,
)
from venusrl.models.sandboxes import SandboxState as StateName

router = APIRouter(prefix="/v1", tags=["sandboxes"])

Wait = Annotated[
    float,
    Query(ge=0.0, le=WAIT_S_MAX, description="Seconds to wait until it is as asked."),
]
FilePath = Annotated[
    str, Query(min_length=1, max_length=PATH_CHARS_MAX, description="A file inside.")
]

OCTETS: Final = "application/octet-stream"


@router.get("/templates")
async def list_templates(caller: Viewer, gateway: GatewayDep) -> Templates:
    """What sandboxes can start from now, and what its runtime can do."""
    return await service.templates(gateway)


@router.post("/sandboxes", status_code=201, response_model=SandboxGroup)
async def create_sandboxes(
    body: SandboxCreate,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = 20.0,
) -> JSONResponse:
    """Ask for `n` sandboxes as one fork, and wait for their start.

    What is still `requested` waits for room: `detail` says for what. What no node had room for within a
    minute ends with the cause `no_room`. The answer to a repeated request tells of the same sandboxes.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    made = await run_once(gateway, once, lambda c: service.create(c, gateway, caller, body))
    group_id = json.loads(bytes(made.body))["id"]
    replayed = {name: made.headers[name] for name in (REPLAYED,) if name in made.headers}
    now = await service.started(gateway, caller, group_id, wait)
    return JSONResponse(now, made.status_code, headers=replayed)


@router.get("/sandboxes")
async def list_sandboxes(
    caller: Viewer,
    wanted: Wanted,
    gateway: GatewayDep,
    state: Annotated[StateName | None, Query()] = None,
    group: Annotated[str | None, Query(max_length=100)] = None,
) -> Page[Sandbox]:
    """Sandboxes of the project; ended ones are kept for 30 days."""
    async with gateway.database.begin() as connection:
        found = await store.page(connection, caller.project_id, wanted, state=state, group_id=group)
    return to_page(found, service.sandbox_of)


@router.get("/sandboxes/{sandbox_id}")
async def get_sandbox(sandbox_id: str, caller: Viewer, gateway: GatewayDep) -> Sandbox:
    """One sandbox."""
    row, _ = await doors.need(gateway, caller, sandbox_id)
    return service.sandbox_of(row)


@router.delete("/sandboxes/{sandbox_id}")
async def delete_sandbox(
    sandbox_id: str, caller: Developer, gateway: GatewayDep, wait: Wait = 20.0
) -> Sandbox:
    """End a sandbox with everything inside; one that has ended stays as it is.

    `desired` is `ended` in any case; its node acts on it at once, or as soon as it can.
    """
    asked = Asked(sandbox_id, SandboxState.ENDED)
    return await service.want(gateway, caller, asked, wait)


@router.post("/sandboxes/{sandbox_id}/pause")
async def pause_sandbox(
    sandbox_id: str,
    caller: Developer,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = 20.0,
) -> Sandbox:
    """Stop all its processes; nothing inside is lost, and its lifetime stops.

    It goes on holding its memory, in swap where there is some; after a day of pause it ends.
    """
    return await service.want(gateway, caller, Asked(sandbox_id, SandboxState.PAUSED), wait)


@router.post("/sandboxes/{sandbox_id}/resume")
async def resume_sandbox(
    sandbox_id: str,
    caller: Developer,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = 20.0,
) -> Sandbox:
    """Let it go on, with what was left of its lifetime."""
    return await service.want(gateway, caller, Asked(sandbox_id, SandboxState.RUNNING), wait)


@router.post("/sandboxes/{sandbox_id}/timeout")
async def set_timeout(
    sandbox_id: str,
    body: SandboxTimeout,
    caller: Developer,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> Sandbox:
    """Let it live for so long from now on, longer or shorter than before."""
    return await service.extend(gateway, caller, sandbox_id, body.lifetime_s)


@router.post("/sandboxes/{sandbox_id}/fork", status_code=501, response_model=None)
async def fork_sandbox(
    sandbox_id: str, caller: Developer, gateway: GatewayDep, key: IdempotencyKey = None
) -> None:
    """Fork a running sandbox: no runtime can yet, and the answer says so."""
    await service.refuse(gateway, caller, sandbox_id, "fork")


@router.post("/sandboxes/{sandbox_id}/snapshot", status_code=501, response_model=None)
async def snapshot_sandbox(
    sandbox_id: str, caller: Developer, gateway: GatewayDep, key: IdempotencyKey = None
) -> None:
    """Keep an image of a running sandbox's memory: no runtime can yet, and the answer says so."""
    await service.refuse(gateway, caller, sandbox_id, "snapshot")


@router.post("/sandboxes/{sandbox_id}/exec")
async def execute(
    sandbox_id: str,
    body: SandboxExec,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> Executed:
    """Run a command to its end. With an Idempotency-Key it runs once, however often it is asked for.

    A sandbox that ends meanwhile answers `sandbox_ended` with its cause: that is no result of the
    command.
    """
    given = gateway.ids.new("call") if key is None else key
    return await service.execute(gateway, caller, sandbox_id, body, f"{caller.key_id}/{given}")


@router.get("/sandboxes/{sandbox_id}/metrics")
async def get_metrics(sandbox_id: str, caller: Viewer, gateway: GatewayDep) -> SandboxMetrics:
    """What it costs now: memory of its own, swapped, shared and beside it, and CPU."""
    return await service.measure(gateway, caller, sandbox_id)


@router.get("/sandboxes/{sandbox_id}/files", response_class=Response)
async def read_file(
    sandbox_id: str, path: FilePath, caller: Developer, gateway: GatewayDep
) -> Response:
    """The bytes of a regular file of at most 8 MiB; links and special files are refused."""
    answer = await doors.ask(gateway, caller, sandbox_id, DoorRead(0, sandbox_id, path))
    assert isinstance(answer, DoorContent)
    return Response(answer.content, media_type=OCTETS)


@router.put("/sandboxes/{sandbox_id}/files", status_code=204)
async def write_file(
    sandbox_id: str, path: FilePath, caller: Developer, request: Request, gateway: GatewayDep
) -> Response:
    """Replace a file by the body, of at most 8 MiB, making its folders."""
    content = await read_limited(request, FILE_BYTES_MAX, "The file")
    await doors.ask(gateway, caller, sandbox_id, DoorWrite(0, sandbox_id, path, content))
    return Response(status_code=204)
