"""Routes of webhooks."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from api.auth.caller import Developer, Viewer
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.paging import Wanted, to_page
from api.problems import not_found
from api.webhooks import service
from stores import webhooks
from stores.webhooks import DeliveriesWanted
from venusrl.models.common import Page
from venusrl.models.webhooks import (
    Delivery,
    DeliveryState,
    Webhook,
    WebhookCreate,
    WebhookCreated,
    WebhookPatch,
    WebhookRotate,
)

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=201, response_model=WebhookCreated)
async def create_webhook(
    body: WebhookCreate,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Send events of the project's jobs to an address, from now on.

    The secret that signs them is in this answer only: the answer to a repeated request has an empty
    one.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    answer = await run_once(gateway, once, lambda c: service.create(c, gateway, caller, body))
    return service.with_secret(gateway, answer)


@router.get("")
async def list_webhooks(caller: Viewer, wanted: Wanted, gateway: GatewayDep) -> Page[Webhook]:
    """Webhooks of the project, without secrets."""
    async with gateway.database.begin() as connection:
        found = await webhooks.page(connection, caller.project_id, wanted)
    return to_page(found, service.webhook_of)


@router.get("/{webhook_id}")
async def get_webhook(webhook_id: str, caller: Viewer, gateway: GatewayDep) -> Webhook:
    """One webhook, without its secret."""
    async with gateway.database.begin() as connection:
        return service.webhook_of(await service.need(connection, caller, webhook_id))


@router.patch("/{webhook_id}")
async def patch_webhook(
    webhook_id: str, body: WebhookPatch, caller: Developer, gateway: GatewayDep
) -> Webhook:
    """Change address, types or description; switch it on or off.

    While it is off no event is kept for it; deliveries that wait go on when it is on again.
    """
    async with gateway.database.begin() as connection:
        return await service.patch(connection, gateway, caller, webhook_id, body)


@router.delete("/{webhook_id}", status_code=204)
async def delete_webhook(webhook_id: str, caller: Developer, gateway: GatewayDep) -> Response:
    """Delete a webhook with its deliveries."""
    async with gateway.database.begin() as connection:
        if not await webhooks.delete(connection, caller.project_id, webhook_id):
            raise not_found("webhook", webhook_id)
    return Response(status_code=204)


@router.post("/{webhook_id}/rotate", response_model=WebhookCreated)
async def rotate_webhook(
    webhook_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    body: Annotated[WebhookRotate, Body()] = WebhookRotate(),  # noqa: B008  # frozen
    key: IdempotencyKey = None,
) -> JSONResponse:
    """A new secret; for `grace_s` messages carry the signatures of both.

    The secret is in this answer only: the answer to a repeated request has an empty one.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    answer = await run_once(
        gateway,
        once,
        lambda c: service.rotate(c, gateway, caller, webhook_id, body.grace_s),
        status=200,
    )
    return service.with_secret(gateway, answer)


@router.post("/{webhook_id}/test", status_code=202, response_model=Delivery)
async def send_test(
    webhook_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Send an event `webhook.test`; poll its delivery for what became of it."""
    once = Once(caller.key_id, key, request.url.path, None)
    return await run_once(
        gateway, once, lambda c: service.send_test(c, caller, webhook_id), status=202
    )


def filters(
    state: Annotated[DeliveryState | None, Query()] = None,
    type: Annotated[str | None, Query(max_length=64)] = None,
) -> DeliveriesWanted:
    """Dependency: which deliveries are wanted."""
    return DeliveriesWanted(state, type)


@router.get("/{webhook_id}/deliveries")
async def list_deliveries(
    webhook_id: str,
    caller: Viewer,
    wanted: Annotated[DeliveriesWanted, Depends(filters)],
    page: Wanted,
    gateway: GatewayDep,
) -> Page[Delivery]:
    """Deliveries of a webhook with their last tries; ended ones are kept for 30 days."""
    async with gateway.database.begin() as connection:
        await service.need(connection, caller, webhook_id)
        found = await webhooks.deliveries(connection, caller.project_id, webhook_id, wanted, page)
    return to_page(found, service.delivery_of)


@router.get("/{webhook_id}/deliveries/{delivery_id}")
async def get_delivery(
    webhook_id: str, delivery_id: str, caller: Viewer, gateway: GatewayDep
) -> Delivery:
    """One delivery."""
    async with gateway.database.begin() as connection:
        row = await service.need_delivery(connection, caller, webhook_id, delivery_id)
    return service.delivery_of(row)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202, response_model=Delivery
)
async def redeliver(
    webhook_id: str,
    delivery_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Send an event again, with the id that it had, whatever became of it."""
    once = Once(caller.key_id, key, request.url.path, None)
    return await run_once(
        gateway,
        once,
        lambda c: service.redeliver(c, caller, webhook_id, delivery_id),
        status=202,
    )
