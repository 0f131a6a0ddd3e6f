"""Verbs of organizations, projects and keys."""

import json
from typing import Any

from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncConnection

from api.auth.caller import ROLES, Caller
from api.auth.keys import new_secret, secret_hash, shown_prefix
from api.gateway import Gateway
from api.problems import Finding, conflict, forbidden, invalid, not_found
from stores import keys, tenancy
from venusrl.models.tenancy import (
    Key,
    KeyCreate,
    Organization,
    OrganizationCreate,
    Project,
    ProjectCreate,
)


def organization_of(row: Any) -> Organization:
    """Wire form of an organization row."""
    return Organization.model_validate(row, from_attributes=True)


def project_of(row: Any) -> Project:
    """Wire form of a project row."""
    return Project.model_validate(row, from_attributes=True)


def key_of(row: Any) -> Key:
    """Wire form of a key row; the hash stays inside."""
    return Key.model_validate(row, from_attributes=True)


async def create_organization(
    connection: AsyncConnection, gateway: Gateway, caller: Caller, body: OrganizationCreate
) -> dict[str, Any]:
    """Only the installation's admin key may."""
    caller.may("admin")
    if caller.organization_id is not None:
        raise forbidden("Only the installation's admin key creates organizations.")
    row = await tenancy.create_organization(connection, gateway.ids.new("org"), body.name)
    return organization_of(row).model_dump(mode="json")


async def create_project(
    connection: AsyncConnection, gateway: Gateway, caller: Caller, body: ProjectCreate
) -> dict[str, Any]:
    """In the caller's organization, or in the named one for the installation's admin key."""
    caller.may("admin")
    organization = caller.organization_id or body.organization_id
    if organization is None:
        finding = Finding("/organization_id", "missing", "The admin key must name it.")
        raise invalid([finding])
    if body.organization_id not in (None, organization):
        raise not_found("organization", str(body.organization_id))
    known = await tenancy.organizations(connection, organization)
    if not known:
        raise not_found("organization", organization)
    row = await tenancy.create_project(connection, gateway.ids.new("prj"), organization, body.name)
    if row is None:
        raise conflict(f"The organization has a project {body.name!r} already.", "name_taken")
    return project_of(row).model_dump(mode="json")


async def create_key(
    connection: AsyncConnection,
    gateway: Gateway,
    asked: tuple[Caller, dict[str, Any]],
    body: KeyCreate,
) -> dict[str, Any]:
    """Create a key; the secret goes into the second of `asked`, never into a stored answer."""
    caller, secret = asked
    caller.may("admin")
    if ROLES.index(body.role) > ROLES.index(caller.role):
        raise forbidden("A key cannot have a higher role than the key that creates it.")
    project = await tenancy.find_project(connection, caller.organization_id, body.project_id)
    if project is None:
        raise not_found("project", body.project_id)
    secret["secret"] = new_secret()
    row = await keys.create(
        connection,
        id=gateway.ids.new("key"),
        organization_id=project.organization_id,
        project_id=project.id,
        name=body.name,
        role=body.role,
        prefix=shown_prefix(secret["secret"]),
        secret_hash=secret_hash(secret["secret"]),
        expires_at=body.expires_at,
    )
    return key_of(row).model_dump(mode="json")


def with_secret(answer: JSONResponse, secret: dict[str, Any]) -> JSONResponse:
    """The answer with the secret; a replayed one carries an empty secret and says so."""
    body = json.loads(bytes(answer.body)) | {"secret": secret.get("secret", "")}
    headers = {k: v for k, v in answer.headers.items() if k == "idempotent-replayed"}
    return JSONResponse(body, answer.status_code, headers=headers)
