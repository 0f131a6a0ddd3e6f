"""Organizations, projects, API keys."""

from collections.abc import AsyncIterator
from datetime import datetime

from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport
from venusrl.models.tenancy import Key, KeyCreated, Organization, Project, Role

ORGANIZATIONS = "/v1/organizations"
PROJECTS = "/v1/projects"
KEYS = "/v1/api-keys"


class AsyncOrganizations:
    """`client.organizations`; creating one needs the installation's admin key."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str) -> Organization:
        """Create an organization."""
        request = Request("POST", ORGANIZATIONS, body={"name": name})
        return await read(self._transport, request, Organization)

    def list(self) -> AsyncIterator[Organization]:
        """The caller's organization; all of them for the admin key."""
        return iterate(self._transport, ORGANIZATIONS, {}, Organization)


class AsyncProjects:
    """`client.projects`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str, organization_id: str | None = None) -> Project:
        """Create a project; the admin key names the organization."""
        body = {"name": name, "organization_id": organization_id}
        return await read(self._transport, Request("POST", PROJECTS, body=body), Project)

    def list(self, organization_id: str | None = None) -> AsyncIterator[Project]:
        """Projects of the organization."""
        return iterate(self._transport, PROJECTS, {"organization_id": organization_id}, Project)


class AsyncKeys:
    """`client.keys`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        project_id: str,
        *,
        role: Role = "developer",
        expires_at: datetime | None = None,
    ) -> KeyCreated:
        """Create a key of a project. Its `secret` is shown in this answer only.

        A repeated request cannot show a lost secret again: the key is revoked and another one made.
        """
        body = {"name": name, "project_id": project_id, "role": role}
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        while True:
            key = await read(self._transport, Request("POST", KEYS, body=body), KeyCreated)
            if key.secret:
                return key
            await self.revoke(key.id)

    async def get(self, key_id: str) -> Key:
        """One key, without its secret."""
        return await read(self._transport, Request("GET", f"{KEYS}/{one(key_id)}"), Key)

    async def rotate(self, key_id: str, *, grace_s: int = 0) -> KeyCreated:
        """A new key in the place of an old one, which ends after `grace_s` seconds.

        Its `secret` is shown in this answer only. When that answer is lost the new key, whose secret
        nobody knows, is rotated in its turn.
        """
        while True:
            request = Request("POST", f"{KEYS}/{one(key_id)}/rotate", body={"grace_s": grace_s})
            key = await read(self._transport, request, KeyCreated)
            if key.secret:
                return key
            key_id, grace_s = key.id, 0

    def list(self, organization_id: str | None = None) -> AsyncIterator[Key]:
        """Keys of the organization, without secrets."""
        return iterate(self._transport, KEYS, {"organization_id": organization_id}, Key)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key at once; revoking it again changes nothing."""
        await self._transport.send(Request("DELETE", f"{KEYS}/{one(key_id)}"))
