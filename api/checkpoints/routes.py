"""Routes of checkpoints."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.auth.caller import Developer, Viewer
from api.checkpoints import service
from api.gateway import Gateway, GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.jobs.storable import unstorable
from api.operations.service import WAIT_MAX_S, Wait, answer
from api.paging import Wanted, to_page
from api.problems import invalid, not_found
from stores import checkpoints, jobs
from stores.checkpoints import Filters
from venusrl.models.checkpoints import (
    Checkpoint,
    CheckpointPatch,
    ExportRequest,
    GenerateRequest,
    Operation,
)
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
        of_job = Filters(job_id=job_id)
        found = await checkpoints.page(connection, caller.project_id, of_job, wanted)
    return to_page(found, service.checkpoint_of)


@router.get("/checkpoints")
async def list_all_checkpoints(
    caller: Viewer,
    wanted: Wanted,
    gateway: GatewayDep,
    state: Annotated[Literal["writing", "ready", "expired"] | None, Query()] = None,
    keep: Annotated[bool | None, Query()] = None,
) -> Page[Checkpoint]:
    """Checkpoints of all jobs of the project; of deleted jobs those that are left."""
    filters = Filters(state=state, keep=keep)
    async with gateway.database.begin() as connection:
        found = await checkpoints.page(connection, caller.project_id, filters, wanted)
    return to_page(found, service.checkpoint_of)


@router.get("/checkpoints/{checkpoint_id}")
async def get_checkpoint(
    checkpoint_id: str, caller: Viewer, gateway: GatewayDep, response: Response
) -> Checkpoint:
    """One checkpoint with its files; its ETag goes into If-Match of a PATCH."""
    async with gateway.database.begin() as connection:
        row = await service.need(connection, caller, checkpoint_id)
    response.headers["ETag"] = service.etag_of(row)
    return service.checkpoint_of(row)


@router.patch("/checkpoints/{checkpoint_id}")
async def patch_checkpoint(
    checkpoint_id: str,
    body: CheckpointPatch,
    caller: Developer,
    gateway: GatewayDep,
    response: Response,
    if_match: Annotated[str | None, Header()] = None,
) -> Checkpoint:
    """Keep a checkpoint, or let it expire after some days."""
    async with gateway.database.begin() as connection:
        row = await service.patch(connection, caller, (checkpoint_id, body), if_match)
    response.headers["ETag"] = service.etag_of(row)
    return service.checkpoint_of(row)


@router.delete("/checkpoints/{checkpoint_id}", status_code=204)
async def delete_checkpoint(checkpoint_id: str, caller: Developer, gateway: GatewayDep) -> None:
    """Expire a checkpoint now; its files go soon after. 409 while something needs it."""
    async with gateway.database.begin() as connection:
        await service.delete(connection, caller, checkpoint_id)


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
    return await _sent(gateway, service.file_of(row, name), (range_, if_range))


@router.get("/checkpoints/{checkpoint_id}/export", response_class=Response)
async def download_export(
    checkpoint_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
    if_range: Annotated[str | None, Header(max_length=200)] = None,
) -> StreamingResponse:
    """The exported bundle, streamed; one `Range` continues a broken download."""
    async with gateway.database.begin() as connection:
        row = await service.need(connection, caller, checkpoint_id)
    return await _sent(gateway, service.bundle_file(row), (range_, if_range), is_named=True)


async def _sent(
    gateway: Gateway,
    file: dict[str, Any],
    asked: tuple[str | None, str | None],
    is_named: bool = False,
) -> StreamingResponse:
    range_, if_range = asked
    etag = f'"{file["sha"]}"'
    part = service.part_of(range_ if if_range in (None, etag) else None, file["size"])
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(part.stop - part.start),
        "ETag": etag,
    }
    if is_named:
        headers["Content-Disposition"] = f'attachment; filename="{file["name"]}"'
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
    return await answer(gateway, caller, started, wait, request)


@router.post(
    "/checkpoints/{checkpoint_id}/export",
    status_code=202,
    response_model=Operation,
    responses={200: {"model": Operation, "description": "It ended within `wait`."}},
)
async def export(
    checkpoint_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    body: Annotated[ExportRequest | None, Body()] = None,
    key: IdempotencyKey = None,
    wait: Wait = WAIT_MAX_S,
) -> JSONResponse:
    """Make one file of weights and model description; GET of the same address downloads it.

    200 with the ended operation (state `done` or `failed`), or 202 when it takes longer than `wait`.
    """
    asked = (checkpoint_id, body or ExportRequest())
    once = Once(caller.key_id, key, request.url.path, asked[1].model_dump(mode="json"))
    started = await run_once(
        gateway, once, lambda c: service.export(c, gateway, caller, asked), status=202
    )
    return await answer(gateway, caller, started, wait, request)
