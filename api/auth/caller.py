"""The caller of a request, from its key; every store call takes the tenant from here."""

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Header, Request

from api.audit.call import Actor, name_actor
from api.auth.keys import secret_hash
from api.gateway import gateway_of
from api.problems import Problem, forbidden
from stores import keys

ROLES: Final = ("viewer", "developer", "admin", "owner")
"""In rising order."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A proven key. No organization: the installation's bootstrap admin key."""

    key_id: str
    role: str
    organization_id: str | None
    project_id: str | None

    def may(self, role: str) -> None:
        """Raise 403 unless the key's role is at least this one."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise forbidden(f"This needs the role {role}; the key has {self.role}.")

    def in_project(self) -> "ProjectCaller":
        """The caller inside its project; raises 403 for keys without one."""
        if self.organization_id is None or self.project_id is None:
            raise forbidden("This needs a key of a project; create one with POST /v1/api-keys.")
        return ProjectCaller(self.key_id, self.role, self.organization_id, self.project_id)


@dataclass(frozen=True, slots=True)
class ProjectCaller:
    """A caller whose key belongs to one project."""

    key_id: str
    role: str
    organization_id: str
    project_id: str


async def caller_of(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    x_api_key: Annotated[str | None, Header()] = None,
) -> Caller:
    """Dependency: who calls. Raises 401."""
    secret = x_api_key
    if authorization is not None:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer":
            secret = None
    if not secret:
        raise Problem(401, "unauthorized", "Send a key: Authorization: Bearer vrl_...")
    async with gateway_of(request).database.begin() as connection:
        row = await keys.find_active(connection, secret_hash(secret.strip()))
    if row is None:
        raise Problem(401, "unauthorized", "The key is unknown, expired or revoked.")
    name_actor(Actor(row.id, row.organization_id, row.project_id))
    return Caller(row.id, row.role, row.organization_id, row.project_id)


CallerDep = Annotated[Caller, Depends(caller_of)]


async def viewer(caller: CallerDep) -> ProjectCaller:
    """Dependency: may read inside a project."""
    return caller.in_project()


async def developer(caller: CallerDep) -> ProjectCaller:
    """Dependency: may change things inside a project."""
    caller.may("developer")
    return caller.in_project()


Viewer = Annotated[ProjectCaller, Depends(viewer)]
Developer = Annotated[ProjectCaller, Depends(developer)]
