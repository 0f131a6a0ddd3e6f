"""Routes of organizations, projects and API keys."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth.caller import CallerDep
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.paging import Wanted, to_page
from api.problems import not_found
from api.tenancy import service
from stores import keys, tenancy
from venusrl.models.common import Page
from venusrl.models.tenancy import (
    Key,
    KeyCreate,
    KeyCreated,
    KeyRotate,
    Organization,
    OrganizationCreate,
    Project,
    ProjectCreate,
)

router = APIRouter(prefix="/v1", tags=["tenancy"])

OrganizationId = Annotated[str, Query(max_length=100)]


@router.post("/organizations", status_code=201, response_model=Organization)
async def create_organization(
    body: OrganizationCreate,
    caller: CallerDep,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Create an organization; needs the installation's admin key."""
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    return await run_once(
        gateway, once, lambda c: service.create_organization(c, gateway, caller, body)
    )


@router.get("/organizations")
async def list_organizations(
    caller: CallerDep, wanted: Wanted, gateway: GatewayDep
) -> Page[Organization]:
    """The caller's organization; all of them for the installation's admin key."""
    async with gateway.database.begin() as connection:
        found = await tenancy.organizations(connection, caller.organization_id, wanted)
    return to_page(found, service.organization_of)


@router.post("/projects", status_code=201, response_model=Project)
async def create_project(
    body: ProjectCreate,
    caller: CallerDep,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Create a project in an organization; needs the role admin."""
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    return await run_once(gateway, once, lambda c: service.create_project(c, gateway, caller, body))


@router.get("/projects")
async def list_projects(
    caller: CallerDep, wanted: Wanted, gateway: GatewayDep, organization_id: OrganizationId = ""
) -> Page[Project]:
    """Projects of the caller's organization; the admin key names one."""
    organization = caller.organization_id or organization_id
    async with gateway.database.begin() as connection:
        found = await tenancy.projects(connection, organization, wanted)
    return to_page(found, service.project_of)


@router.post("/api-keys", status_code=201, response_model=KeyCreated)
async def create_key(
    body: KeyCreate,
    caller: CallerDep,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Create a key of a project or of an organization.

    The secret is in this answer only: the answer to a repeated request has an empty one.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    secret: dict[str, Any] = {}
    answer = await run_once(
        gateway, once, lambda c: service.create_key(c, gateway, (caller, secret), body)
    )
    return service.with_secret(answer, secret)


@router.get("/api-keys")
async def list_keys(
    caller: CallerDep, wanted: Wanted, gateway: GatewayDep, organization_id: OrganizationId = ""
) -> Page[Key]:
    """Keys of the caller's organization, or of its project; without secrets."""
    caller.may("admin")
    organization = caller.organization_id or organization_id
    async with gateway.database.begin() as connection:
        found = await keys.page(connection, organization, caller.project_id, wanted)
    return to_page(found, service.key_of)


@router.get("/api-keys/{key_id}")
async def get_key(key_id: str, caller: CallerDep, gateway: GatewayDep) -> Key:
    """One key, without its secret."""
    async with gateway.database.begin() as connection:
        return service.key_of(await service.need_key(connection, caller, key_id))


@router.post("/api-keys/{key_id}/rotate", status_code=201, response_model=KeyCreated)
async def rotate_key(
    key_id: str,
    caller: CallerDep,
    request: Request,
    gateway: GatewayDep,
    body: Annotated[KeyRotate, Body()] = KeyRotate(),  # noqa: B008  # frozen
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Replace a key by a new one of the same name, role, scope and end.

    The old one ends at once, or after `grace_s`. The secret is in this answer only: the answer to a
    repeated request has an empty one.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    secret: dict[str, Any] = {}
    answer = await run_once(
        gateway, once, lambda c: service.rotate_key(c, gateway, (caller, secret), key_id, body)
    )
    return service.with_secret(answer, secret)


@router.delete("/api-keys/{key_id}", status_code=204)
async def revoke_key(key_id: str, caller: CallerDep, gateway: GatewayDep) -> Response:
    """Revoke a key at once."""
    caller.may("admin")
    async with gateway.database.begin() as connection:
        scope = (caller.organization_id, caller.project_id)
        if not await keys.revoke(connection, *scope, key_id):
            raise not_found("key", key_id)
    return Response(status_code=204)
