"""Routes of datasets."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth.caller import Developer, Viewer
from api.datasets import service
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.paging import Wanted, to_page
from api.problems import Problem
from api.uploads import received
from stores import datasets
from venusrl.models.common import Page
from venusrl.models.datasets import Dataset, DatasetCreate, DatasetVersion, Preview

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

DatasetName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


@router.post("", status_code=201, response_model=Dataset)
async def create_dataset(
    body: DatasetCreate,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Reserve a name; uploading a version does so too."""
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    return await run_once(gateway, once, lambda c: service.create(c, gateway, caller, body.name))


@router.post("/{name}/versions", status_code=201, response_model=DatasetVersion)
async def upload_version(
    name: DatasetName,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Upload a version: one part a split, each a file of JSON lines.

    The same content is the same version. The answer's state is `validating`; poll the version until
    it is `ready` or `failed`. Findings name lines that are no task, rows that occur twice, and rows
    of one split that are in another.
    """
    async with received(request, gateway, service.upload_plan(gateway)) as form:
        new = await service.store_upload(gateway, gateway.ids.new("dv"), form)
    once = Once(caller.key_id, key, request.url.path, new.content_sha)
    try:
        answer = await run_once(
            gateway, once, lambda c: service.add_version(c, gateway, caller, (name, new))
        )
    except Problem:
        await service.remove(gateway, new)
        raise
    if new.id.encode() not in bytes(answer.body):
        await service.remove(gateway, new)
    return answer


@router.get("")
async def list_datasets(caller: Viewer, wanted: Wanted, gateway: GatewayDep) -> Page[Dataset]:
    """Datasets of the project."""
    async with gateway.database.begin() as connection:
        found = await datasets.page(connection, caller.project_id, wanted)
    return to_page(found, service.dataset_of)


@router.get("/{name}")
async def get_dataset(name: DatasetName, caller: Viewer, gateway: GatewayDep) -> Dataset:
    """One dataset."""
    async with gateway.database.begin() as connection:
        return service.dataset_of(await service.need(connection, caller, name))


@router.delete("/{name}", status_code=204)
async def delete_dataset(name: DatasetName, caller: Developer, gateway: GatewayDep) -> Response:
    """Delete a dataset with all its versions; jobs keep the tasks that they took from it."""
    async with gateway.database.begin() as connection:
        files = await service.delete(connection, caller, name)
    for uri in files:
        await gateway.blobs.delete(uri)
    return Response(status_code=204)


@router.get("/{name}/versions")
async def list_versions(
    name: DatasetName, caller: Viewer, wanted: Wanted, gateway: GatewayDep
) -> Page[DatasetVersion]:
    """Versions of a dataset."""
    async with gateway.database.begin() as connection:
        await service.need(connection, caller, name)
        found = await datasets.versions(connection, caller.project_id, name, wanted)
    return to_page(found, lambda row: service.version_of(name, row))


@router.get("/{name}/versions/{version}")
async def get_version(
    name: DatasetName, version: VersionNumber, caller: Viewer, gateway: GatewayDep
) -> DatasetVersion:
    """One version with its state, findings and numbers of rows."""
    async with gateway.database.begin() as connection:
        return service.version_of(
            name, await service.need_version(connection, caller, name, version)
        )


@router.get("/{name}/versions/{version}/preview")
async def preview_version(
    name: DatasetName,
    version: VersionNumber,
    caller: Viewer,
    gateway: GatewayDep,
    split: Annotated[str, Query(pattern=r"^[a-z][a-z0-9_]{0,31}$")] = "train",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Preview:
    """The first rows of a split, also of a version that failed."""
    async with gateway.database.begin() as connection:
        row = await service.need_version(connection, caller, name, version)
    return await service.preview(gateway, row, split, limit)
