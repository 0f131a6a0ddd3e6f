"""Verbs of webhooks. Nothing is sent here: a delivery is a row, which a worker sends."""

import json
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.idempotency import REPLAYED
from api.problems import Finding, conflict, invalid, not_found
from infra import signatures
from infra.addresses import is_address, is_local_name, is_public
from infra.webhook_key import installation_key
from stores import outbox
from stores import webhooks as store
from stores.environments import Owner
from stores.unit_of_work import AsyncConnection
from venusrl.models.webhooks import Delivery, Webhook, WebhookCreate, WebhookPatch

WEBHOOKS_MAX: Final = 20
"""Of one project: each event is written once for each of them."""


def webhook_of(row: Any) -> Webhook:
    """Wire form of a webhook row."""
    return Webhook.model_validate(row, from_attributes=True)


def delivery_of(row: Any) -> Delivery:
    """Wire form of a delivery row; what is not pending has no next try."""
    one = Delivery.model_validate(row, from_attributes=True)
    return one if row.state == "pending" else one.model_copy(update={"next_at": None})


def check_url(gateway: Gateway, url: str) -> None:
    """Raise 422 for an address that is never called. What its name resolves to is checked at each try."""
    try:
        parts = urlsplit(url)
        host, _ = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise _bad("bad_url", f"The address cannot be read: {error}.") from error
    if not host or parts.username is not None or parts.password is not None or parts.fragment:
        raise _bad("bad_url", "The address needs a host, and takes no user and no fragment.")
    if host in gateway.settings.webhooks.hosts:
        return
    if parts.scheme != "https":
        raise _bad("not_encrypted", "The address must begin with https://.")
    if is_local_name(host) or (is_address(host) and not is_public(host)):
        raise _bad("address_refused", "The address does not belong to the public network.")


def _bad(code: str, message: str) -> Exception:
    hint = "VENUS_WEBHOOK_HOSTS names hosts of its own network that the installation may call."
    return invalid([Finding("/url", code, message, "" if code == "bad_url" else hint)])


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, body: WebhookCreate
) -> dict[str, Any]:
    """Insert a webhook; its secret is derived from what is inserted."""
    check_url(gateway, body.url)
    values = {
        "id": gateway.ids.new("whk"),
        "key_check": signatures.key_check(installation_key(gateway.settings)),
        **body.model_dump(),
    }
    owner = Owner(caller.organization_id, caller.project_id)
    row = await store.create(connection, owner, values, WEBHOOKS_MAX)
    if row is None:
        raise conflict(f"The project has {WEBHOOKS_MAX} webhooks, as many as it may.")
    return webhook_of(row).model_dump(mode="json")


async def need(
    connection: AsyncConnection, caller: ProjectCaller, webhook_id: str, *, lock: bool = False
) -> Any:
    """A webhook of the project. Raises 404."""
    row = await store.find(connection, caller.project_id, webhook_id, lock=lock)
    if row is None:
        raise not_found("webhook", webhook_id)
    return row


async def patch(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    webhook_id: str,
    body: WebhookPatch,
) -> Webhook:
    """Change what is given. Raises 404 or 422."""
    values = {k: v for k, v in body.model_dump(exclude_unset=True).items() if v is not None}
    if "url" in values:
        check_url(gateway, values["url"])
    row = await store.change(connection, caller.project_id, webhook_id, values)
    if row is None:
        raise not_found("webhook", webhook_id)
    return webhook_of(row)


async def rotate(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    webhook_id: str,
    grace_s: int,
) -> dict[str, Any]:
    """The next generation of the secret."""
    check = signatures.key_check(installation_key(gateway.settings))
    row = await store.rotate(connection, caller.project_id, webhook_id, check, grace_s=grace_s)
    if row is None:
        raise not_found("webhook", webhook_id)
    return webhook_of(row).model_dump(mode="json")


def with_secret(gateway: Gateway, answer: JSONResponse) -> JSONResponse:
    """The answer with the secret of its generation, which is derived and never stored.

    A replayed answer carries an empty secret: whoever finds a request later cannot ask for it again.
    """
    body = json.loads(bytes(answer.body))
    if REPLAYED in answer.headers:
        replayed = {REPLAYED: answer.headers[REPLAYED]}
        return JSONResponse(body | {"secret": ""}, answer.status_code, headers=replayed)
    key = installation_key(gateway.settings)
    secret = signatures.secret_of(key, body["id"], body["generation"])
    return JSONResponse(body | {"secret": signatures.shown_secret(secret)}, answer.status_code)


async def send_test(
    connection: AsyncConnection, caller: ProjectCaller, webhook_id: str
) -> dict[str, Any]:
    """A delivery of an event of its own. Raises 404, or 409 while the webhook is off."""
    _need_active(await need(connection, caller, webhook_id, lock=True))
    body = {"webhook_id": webhook_id}
    id = await outbox.enqueue_own(connection, webhook_id, outbox.TEST, body)
    return await _shown(connection, caller, webhook_id, id)


async def redeliver(
    connection: AsyncConnection, caller: ProjectCaller, webhook_id: str, delivery_id: str
) -> dict[str, Any]:
    """Send an event again with the same id. Raises 404, or 409 while the webhook is off."""
    webhook = await need(connection, caller, webhook_id, lock=True)
    await need_delivery(connection, caller, webhook_id, delivery_id)
    _need_active(webhook)
    await store.redeliver(connection, webhook_id, delivery_id)
    return await _shown(connection, caller, webhook_id, delivery_id)


async def need_delivery(
    connection: AsyncConnection, caller: ProjectCaller, webhook_id: str, delivery_id: str
) -> Any:
    """A delivery of the webhook. Raises 404."""
    row = await store.find_delivery(connection, caller.project_id, webhook_id, delivery_id)
    if row is None:
        raise not_found("delivery", delivery_id)
    return row


async def _shown(
    connection: AsyncConnection, caller: ProjectCaller, webhook_id: str, delivery_id: str
) -> dict[str, Any]:
    row = await need_delivery(connection, caller, webhook_id, delivery_id)
    return delivery_of(row).model_dump(mode="json")


def _need_active(webhook: Any) -> None:
    if not webhook.active:
        raise conflict("The webhook is switched off; switch it on first: PATCH with active: true.")
