"""Routes of checkpoints."""

import json
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.auth.caller import Developer, Viewer
from api.checkpoints import service
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.jobs.storable import unstorable
from api.operations.service import ENDED, WAIT_MAX_S, Wait, awaited
from api.paging import Wanted, to_page
from api.problems import invalid, not_found
from stores import checkpoints, jobs
from venusrl.models.checkpoints import Checkpoint, GenerateRequest, Operation
from venusrl.models.common import Page

router = APIRouter(prefix="/v1", tags=["checkpoints"])


@router.get("/jobs/{job_id}/checkpoints")
async def list_checkpoints(
    job_id: str, caller: Viewer, wanted: Wanted, gateway: GatewayDep
) -> Page[Checkpoint]:
    """Checkpoints of a job."""
    async with gateway.database.begin() as connection:
        if await jobs.find(connection, caller.project_id, job_id) is None:
            raise not_found("job", job_id)
        found = await checkpoints.page(connection, caller.project_id, job_id, wanted)
    return to_page(found, service.checkpoint_of)


@router.get("/checkpoints/{checkpoint_id}")
async def get_checkpoint(checkpoint_id: str, caller: Viewer, gateway: GatewayDep) -> Checkpoint:
    """One checkpoint with its files."""
    async with gateway.database.begin() as connection:
        return service.checkpoint_of(await service.need(connection, caller, checkpoint_id))


@router.get("/checkpoints/{checkpoint_id}/files/{name}", response_class=Response)
async def download_file(
    checkpoint_id: str,
    name: str,
    caller: Viewer,
    gateway: GatewayDep,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
) -> StreamingResponse:
    """The file's bytes, streamed; one `Range` continues a broken download."""
    async with gateway.database.begin() as connection:
        row = await service.need(connection, caller, checkpoint_id)
    file = service.file_of(row, name)
    etag = f'"{file["sha"]}"'
    part = service.part_of(range_ if if_range in (None, etag) else None, file["size"])
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(part.stop - part.start),
        "ETag": etag,
    }
    if part.is_partial:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file['size']}"
    return StreamingResponse(
        await service.content(gateway, file, part),
        status_code=206 if part.is_partial else 200,
        headers=headers,
        media_type="application/octet-stream",
    )


@router.post(
    "/checkpoints/{checkpoint_id}/generate",
    status_code=202,
    response_model=Operation,
    responses={200: {"model": Operation, "description": "It ended within `wait`."}},
)
async def generate(
    checkpoint_id: str,
    body: GenerateRequest,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = WAIT_MAX_S,
) -> JSONResponse:
    """One answer of the checkpoint's model to a small prompt, for a look.

    200 with the ended operation (state `done` or `failed`), or 202 when it takes longer than `wait`.
    """
    if found := unstorable(body.model_dump()):
        raise invalid(found, "The request holds what cannot be stored.")
    asked = (checkpoint_id, body)
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    started = await run_once(
        gateway, once, lambda c: service.generate(c, gateway, caller, asked), status=202
    )
    operation_id = str(json.loads(bytes(started.body))["id"])
    operation = await awaited(gateway, caller, operation_id, wait, request)
    status = 200 if operation.state in ENDED else 202
    return JSONResponse(operation.model_dump(mode="json"), status)
