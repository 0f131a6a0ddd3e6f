"""Routes of environments."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from api.auth.caller import Developer, Viewer
from api.bodies import check_archive_type, read_limited
from api.environments import service
from api.environments.service import Ref
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.jobs.storable import unstorable
from api.paging import Wanted, to_page
from api.problems import invalid, not_found
from stores import environments
from stores.blobs import sha256
from venusrl.models.checkpoints import Operation
from venusrl.models.common import Page
from venusrl.models.environments import (
    Environment,
    EnvironmentCreate,
    EnvironmentTest,
    EnvironmentVersion,
    Yank,
)

router = APIRouter(prefix="/v1/environments", tags=["environments"])

EnvironmentName = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


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
    draft: Annotated[bool, Query(description="Not chosen as the newest until published.")] = False,
) -> JSONResponse:
    """Upload a package (gzip-compressed tar as the body); it is validated in its own sandbox.

    The same content is the same version, draft or not as it was. The answer's state is `validating`,
    or `building` for a package with requirements; poll the version until it is `ready` or `failed`,
    which carries findings.
    """
    check_archive_type(request)
    data = await read_limited(request, gateway.settings.limits.upload_bytes, "The package")
    package = await service.read_package(gateway, name, data)
    asked = [sha256(data), "draft"] if draft else sha256(data)
    once = Once(caller.key_id, key, request.url.path, asked)
    return await run_once(
        gateway, once, lambda c: service.add_version(c, gateway, caller, package, draft)
    )


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
    version: VersionNumber,
    caller: Viewer,
    gateway: GatewayDep,
) -> EnvironmentVersion:
    """One version with its state, findings and numbers of tasks."""
    async with gateway.database.begin() as connection:
        row = await environments.find_any_version(connection, caller.project_id, name, version)
    if row is None:
        raise not_found("environment version", f"{name}@{version}")
    return service.version_of(name, row)


@router.delete("/{name}", status_code=204)
async def delete_environment(
    name: EnvironmentName, caller: Developer, gateway: GatewayDep
) -> Response:
    """Delete an environment; 409 while a job that has not ended plays it.

    Versions stay readable to the jobs that used them, also when those are restarted. The name is free.
    """
    async with gateway.database.begin() as connection:
        await service.delete(connection, caller, name)
    return Response(status_code=204)


@router.post("/{name}/versions/{version}/yank", response_model=EnvironmentVersion)
async def yank_version(
    name: EnvironmentName,
    version: VersionNumber,
    body: Yank,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Refuse a version to new jobs; jobs that use it and their restarts go on. `publish` ends it."""
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    ref = Ref(name, version)
    return await run_once(
        gateway, once, lambda c: service.yank(c, caller, ref, body.reason), status=200
    )


@router.post("/{name}/versions/{version}/publish", response_model=EnvironmentVersion)
async def publish_version(
    name: EnvironmentName,
    version: VersionNumber,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """End a draft, or a yank. Before its validation is over: it counts from when it is ready."""
    once = Once(caller.key_id, key, request.url.path, None)
    ref = Ref(name, version)
    return await run_once(gateway, once, lambda c: service.publish(c, caller, ref), status=200)


@router.post("/{name}/versions/{version}/validate", status_code=202, response_model=Operation)
async def validate_version(
    name: EnvironmentName,
    version: VersionNumber,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Validate a version again, for instance after an index was away; its outcome replaces the former.

    A validation that goes on already is the answer.
    """
    once = Once(caller.key_id, key, request.url.path, None)
    ref = Ref(name, version)
    return await run_once(
        gateway, once, lambda c: service.validate_again(c, gateway, caller, ref), status=202
    )


@router.post("/{name}/versions/{version}/test-runs", status_code=202, response_model=Operation)
async def run_test(
    name: EnvironmentName,
    version: VersionNumber,
    body: EnvironmentTest,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Play some of a split through the environment: its cases, or tasks answered by a checkpoint.

    The operation's result has verdicts, rewards and findings by case, and the end of the log.
    """
    if found := unstorable(body.model_dump()):
        raise invalid(found, "The request holds what cannot be stored.")
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    ref = Ref(name, version)
    return await run_once(
        gateway, once, lambda c: service.test(c, gateway, caller, (ref, body)), status=202
    )
