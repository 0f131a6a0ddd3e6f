"""Webhooks: where events are sent, and what became of each delivery."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from venusrl._lists import iterate, read
from venusrl._transport import Request, Transport
from venusrl.models.webhooks import Delivery, DeliveryState, Webhook, WebhookCreated

WEBHOOKS = "/v1/webhooks"


class AsyncWebhooks:
    """`client.webhooks`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        url: str,
        *,
        types: Sequence[str] = ("*",),
        description: str = "",
        active: bool = True,
    ) -> WebhookCreated:
        """Send events of the project to an address. Its `secret` is shown in this answer only.

        A type is whole (`job.state`), a kind (`job.*`), or `*`. When that answer is lost the webhook,
        whose secret nobody knows, gets another one.
        """
        body = {"url": url, "types": [*types], "description": description, "active": active}
        made = await read(self._transport, Request("POST", WEBHOOKS, body=body), WebhookCreated)
        return made if made.secret else await self.rotate(made.id)

    def list(self, newest_first: bool = False) -> AsyncIterator[Webhook]:
        """Webhooks of the project, without secrets."""
        params = {"order": "desc" if newest_first else "asc"}
        return iterate(self._transport, WEBHOOKS, params, Webhook)

    async def get(self, webhook_id: str) -> Webhook:
        """One webhook, without its secret."""
        return await read(self._transport, Request("GET", f"{WEBHOOKS}/{webhook_id}"), Webhook)

    async def update(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        types: Sequence[str] | None = None,
        description: str | None = None,
        active: bool | None = None,
    ) -> Webhook:
        """Change what is given; `active=True` switches it on again."""
        body: dict[str, Any] = {"url": url, "description": description, "active": active}
        body["types"] = None if types is None else [*types]
        given = {name: value for name, value in body.items() if value is not None}
        request = Request("PATCH", f"{WEBHOOKS}/{webhook_id}", body=given)
        return await read(self._transport, request, Webhook)

    async def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        await self._transport.send(Request("DELETE", f"{WEBHOOKS}/{webhook_id}"))

    async def rotate(self, webhook_id: str, *, grace_s: int = 0) -> WebhookCreated:
        """A new secret, shown in this answer only; for `grace_s` seconds both sign.

        When that answer is lost its secret, which nobody knows, is replaced in its turn: the one
        before then signs no longer.
        """
        path = f"{WEBHOOKS}/{webhook_id}/rotate"
        while True:
            request = Request("POST", path, body={"grace_s": grace_s})
            made = await read(self._transport, request, WebhookCreated)
            if made.secret:
                return made

    async def test(self, webhook_id: str) -> Delivery:
        """Send an event `webhook.test`."""
        request = Request("POST", f"{WEBHOOKS}/{webhook_id}/test")
        return await read(self._transport, request, Delivery)

    def deliveries(
        self,
        webhook_id: str,
        *,
        state: DeliveryState | None = None,
        type: str | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Delivery]:
        """Deliveries with their last tries."""
        order = "desc" if newest_first else "asc"
        params = {"state": state, "type": type, "order": order}
        return iterate(self._transport, f"{WEBHOOKS}/{webhook_id}/deliveries", params, Delivery)

    async def delivery(self, webhook_id: str, delivery_id: str) -> Delivery:
        """One delivery."""
        path = f"{WEBHOOKS}/{webhook_id}/deliveries/{delivery_id}"
        return await read(self._transport, Request("GET", path), Delivery)

    async def redeliver(self, webhook_id: str, delivery_id: str) -> Delivery:
        """Send an event again, with the id that it had."""
        path = f"{WEBHOOKS}/{webhook_id}/deliveries/{delivery_id}/redeliver"
        return await read(self._transport, Request("POST", path), Delivery)
