"""Secrets of the project: written and deleted, listed by name, never read back."""

from collections.abc import AsyncIterator

from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport
from venusrl.models.secrets import Secret

SECRETS = "/v1/secrets"


class AsyncSecrets:
    """`client.secrets`: what jobs name under `secrets` and `judges`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def set(self, name: str, value: str) -> Secret:
        """Store a value under a name, over what was there; it is encrypted and never shown again."""
        request = Request("PUT", f"{SECRETS}/{one(name)}", body={"value": value})
        return await read(self._transport, request, Secret)

    def list(self) -> AsyncIterator[Secret]:
        """Names of the project's secrets and when each was written last."""
        return iterate(self._transport, SECRETS, {}, Secret)

    async def delete(self, name: str) -> None:
        """Delete a secret; Conflict while a job that has not ended names it."""
        await self._transport.send(Request("DELETE", f"{SECRETS}/{one(name)}"))
