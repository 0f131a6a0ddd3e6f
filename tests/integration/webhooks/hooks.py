"""A project with a webhook, a delivering process run as a worker would, and time that passes at once."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, update

from infra.settings import Settings
from stores import events
from stores import tables as t
from stores.unit_of_work import AsyncConnection
from tests.integration.api.world import Tenant, World
from tests.support.webhook_receiver import Got
from venusrl.models.webhooks import Delivery, WebhookCreated
from workers.webhooks import main

LOCAL = "127.0.0.1"
"""What the installation of these tests may call beside the public network."""


def run(settings: Settings, **changes: Any) -> int:
    """Deliver what is due; the process's exit status."""
    changed = replace(settings, webhooks=replace(settings.webhooks, **changes))
    return asyncio.run(main.run(changed))


def is_signed(got: Got, secret: str) -> bool:
    """The scheme anew, from its specification."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    message = b".".join([got.id.encode(), got.headers["webhook-timestamp"].encode(), got.body])
    digest = base64.b64encode(hmac.digest(key, message, hashlib.sha256)).decode()
    signatures = [one.split(",", 1) for one in got.headers["webhook-signature"].split(" ")]
    return ["v1", digest] in signatures


@dataclass(slots=True)
class Project:
    """A tenant with a job."""

    tenant: Tenant
    job: dict[str, Any]

    @classmethod
    def made(cls, world: World, name: str = "acme") -> "Project":
        """A new one; its job was made before any webhook."""
        tenant = world.tenant(name)
        return cls(tenant, tenant.job())

    @property
    def world(self) -> World:
        """Where it is."""
        return self.tenant.world

    def hook(self, url: str, **options: Any) -> WebhookCreated:
        """A new webhook."""
        with self.tenant.sdk() as client:
            return client.webhooks.create(url, **options)

    def say(self, *types: str) -> None:
        """Events of the job, as the platform writes them."""

        async def act(connection: AsyncConnection) -> None:
            for type_ in types:
                await events.append(connection, self.job["id"], type_, {"step": 1})

        self.world.run(act)

    def deliveries(self, hook: WebhookCreated) -> Sequence[Delivery]:
        """As the API shows them."""
        with self.tenant.sdk() as client:
            return list(client.webhooks.deliveries(hook.id))

    def later(self) -> None:
        """Every pause and every claim has ended."""
        past = func.now() - timedelta(seconds=1)

        async def act(connection: AsyncConnection) -> None:
            delivery = t.webhook_delivery
            await connection.execute(
                update(delivery)
                .where(delivery.c.state == "pending")
                .values(next_at=past, claimed_until=None)
            )

        self.world.run(act)

    def failing_for(self, hook: WebhookCreated, days: float) -> None:
        """The webhook has failed since then."""
        since = datetime.now(UTC) - timedelta(days=days)
        self.world.change(t.webhook, hook.id, failing_since=since)
