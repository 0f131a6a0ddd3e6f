"""Routes of environments."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse

from api.auth.caller import Developer, Viewer
from api.bodies import check_archive_type, read_limited
from api.environments import service
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.paging import Wanted, to_page
from api.problems import not_found
from stores import environments
from stores.blobs import sha256
from venusrl.models.common import Page
from venusrl.models.environments import Environment, EnvironmentCreate, EnvironmentVersion

router = APIRouter(prefix="/v1/environments", tags=["environments"])

EnvironmentName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


@router.post("", status_code=201, response_model=Environment)
async def create_environment(
    body: EnvironmentCreate,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Reserve a name; uploading a version does so too."""
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    return await run_once(gateway, once, lambda c: service.create(c, gateway, caller, body.name))


@router.post("/{name}/versions", status_code=201, response_model=EnvironmentVersion)
async def upload_version(
    name: EnvironmentName,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Upload a package (gzip-compressed tar as the body); it is validated in its own sandbox.

    The same content is the same version. The answer's state is `validating`; poll the version until
    it is `ready` or `failed`, which carries findings.
    """
    check_archive_type(request)
    data = await read_limited(request, gateway.settings.limits.upload_bytes, "The package")
    package = await service.read_package(gateway, name, data)
    once = Once(caller.key_id, key, request.url.path, sha256(data))
    return await run_once(gateway, once, lambda c: service.add_version(c, gateway, caller, package))


@router.get("")
async def list_environments(
    caller: Viewer, wanted: Wanted, gateway: GatewayDep
) -> Page[Environment]:
    """Environments of the project."""
    async with gateway.database.begin() as connection:
        found = await environments.page(connection, caller.project_id, wanted)
    return to_page(found, service.environment_of)


@router.get("/{name}")
async def get_environment(
    name: EnvironmentName, caller: Viewer, gateway: GatewayDep
) -> Environment:
    """One environment."""
    async with gateway.database.begin() as connection:
        row = await environments.find(connection, caller.project_id, name)
        known = await environments.names(connection, caller.project_id)
    if row is None:
        raise not_found("environment", name, known)
    return service.environment_of(row)


@router.get("/{name}/versions")
async def list_versions(
    name: EnvironmentName, caller: Viewer, gateway: GatewayDep
) -> Page[EnvironmentVersion]:
    """All versions, oldest first."""
    async with gateway.database.begin() as connection:
        rows = await environments.versions(connection, caller.project_id, name)
    if not rows:
        raise not_found("environment", name)
    data = [service.version_of(name, row) for row in rows]
    return Page[EnvironmentVersion](data=data, has_more=False)


@router.get("/{name}/versions/{version}")
async def get_version(
    name: EnvironmentName,
    version: Annotated[int, Path(ge=1, le=2**31 - 1)],
    caller: Viewer,
    gateway: GatewayDep,
) -> EnvironmentVersion:
    """One version with its state, findings and numbers of tasks."""
    async with gateway.database.begin() as connection:
        row = await environments.find_any_version(connection, caller.project_id, name, version)
    if row is None:
        raise not_found("environment version", f"{name}@{version}")
    return service.version_of(name, row)
