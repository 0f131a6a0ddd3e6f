"""Verbs of organizations, projects and keys."""

import json
from typing import Any

from fastapi.responses import JSONResponse

from api.auth.caller import ROLES, Caller
from api.auth.keys import new_secret, secret_hash, shown_prefix
from api.gateway import Gateway
from api.idempotency import REPLAYED
from api.problems import Finding, conflict, forbidden, invalid, not_found
from stores import keys, tenancy
from stores.unit_of_work import AsyncConnection
from venusrl.models.tenancy import (
    Key,
    KeyCreate,
    KeyRotate,
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
    if caller.project_id is not None:
        raise forbidden("A project's key creates no projects; use a key of the organization.")
    organization = await _organization(connection, caller, body.organization_id)
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
    organization, project = await _scope(connection, caller, body)
    if body.expires_at is not None and await keys.is_past(connection, body.expires_at):
        message = "The key would have ended before it is made."
        hint = "Name a later time, or leave it out for a key that does not end."
        raise invalid([Finding("/expires_at", "in_the_past", message, hint)])
    secret["secret"] = new_secret()
    row = await keys.create(
        connection,
        id=gateway.ids.new("key"),
        organization_id=organization,
        project_id=project,
        name=body.name,
        role=body.role,
        prefix=shown_prefix(secret["secret"]),
        secret_hash=secret_hash(secret["secret"]),
        expires_at=body.expires_at,
    )
    return key_of(row).model_dump(mode="json")


async def _organization(connection: AsyncConnection, caller: Caller, asked: str | None) -> str:
    """The caller's organization, or the one that the admin key names."""
    organization = caller.organization_id or asked
    if organization is None:
        raise invalid([Finding("/organization_id", "missing", "The admin key must name it.")])
    known = await tenancy.organization_exists(connection, organization)
    if asked not in (None, organization) or not known:
        raise not_found("organization", str(asked))
    return organization


async def _scope(
    connection: AsyncConnection, caller: Caller, body: KeyCreate
) -> tuple[str, str | None]:
    """Organization and project of a new key; a project's key makes keys of its own project only."""
    if body.project_id is None:
        if caller.project_id is not None:
            raise forbidden("A project's key creates keys of its project only.")
        if body.role not in ("admin", "owner"):
            message = f"A key with the role {body.role} belongs to a project."
            raise invalid([Finding("/project_id", "missing", message)])
        return await _organization(connection, caller, body.organization_id), None
    project = await tenancy.find_project(connection, caller.organization_id, body.project_id)
    is_other = caller.project_id not in (None, body.project_id)
    if project is None or is_other or body.organization_id not in (None, project.organization_id):
        raise not_found("project", body.project_id)
    return project.organization_id, project.id


async def need_key(
    connection: AsyncConnection, caller: Caller, key_id: str, *, lock: bool = False
) -> Any:
    """A key that the caller may see. Raises 403 or 404."""
    caller.may("admin")
    scope = (caller.organization_id, caller.project_id)
    row = await keys.find(connection, *scope, key_id, lock=lock)
    if row is None:
        raise not_found("key", key_id)
    return row


async def rotate_key(
    connection: AsyncConnection,
    gateway: Gateway,
    asked: tuple[Caller, dict[str, Any]],
    key_id: str,
    body: KeyRotate,
) -> dict[str, Any]:
    """A new key with the old one's name, role, scope and end; the old one ends after its grace."""
    caller, secret = asked
    old = await need_key(connection, caller, key_id, lock=True)
    if ROLES.index(old.role) > ROLES.index(caller.role):
        raise forbidden("A key cannot rotate one with a higher role than its own.")
    if old.organization_id is None:
        raise conflict("The installation's admin key is made anew on its own machine.")
    if old.revoked_at is not None:
        raise conflict("The key is revoked; create another one.")
    if old.expires_at is not None and await keys.is_past(connection, old.expires_at):
        raise conflict("The key has expired, and its successor would end with it; create another.")
    secret["secret"] = new_secret()
    row = await keys.create(
        connection,
        id=gateway.ids.new("key"),
        organization_id=old.organization_id,
        project_id=old.project_id,
        name=old.name,
        role=old.role,
        prefix=shown_prefix(secret["secret"]),
        secret_hash=secret_hash(secret["secret"]),
        expires_at=old.expires_at,
    )
    await keys.expire_within(connection, old.id, body.grace_s)
    return key_of(row).model_dump(mode="json")


def with_secret(answer: JSONResponse, secret: dict[str, Any]) -> JSONResponse:
    """The answer with the secret; a replayed one carries an empty secret and says so."""
    body = json.loads(bytes(answer.body)) | {"secret": secret.get("secret", "")}
    headers = {REPLAYED: answer.headers[REPLAYED]} if REPLAYED in answer.headers else {}
    return JSONResponse(body, answer.status_code, headers=headers)
