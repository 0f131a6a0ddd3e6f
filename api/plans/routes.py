"""Routes of plans."""

import json

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from api.auth.caller import Developer, Viewer
from api.gateway import GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.operations.service import ENDED, Wait, awaited
from api.plans import service
from venusrl.models.plans import Plan, PlanCreate

router = APIRouter(prefix="/v1/plans", tags=["plans"])


@router.post(
    "",
    status_code=202,
    response_model=Plan,
    responses={200: {"model": Plan, "description": "It ended within `wait`."}},
)
async def create_plan(
    body: PlanCreate,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = 0.0,
) -> JSONResponse:
    """Forecast a spec on a pool, or a recorded job under other settings; nothing is started.

    200 with the ended plan (state `done` or `failed`), or 202 when it takes longer than `wait`.
    """
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    started = await run_once(
        gateway, once, lambda c: service.create(c, gateway, caller, body), status=202
    )
    plan_id = str(json.loads(bytes(started.body))["id"])
    operation = await awaited(gateway, caller, plan_id, wait, request)
    status = 200 if operation.state in ENDED else 202
    return JSONResponse(service.plan_of(operation).model_dump(mode="json"), status)


@router.get("/{plan_id}")
async def get_plan(
    plan_id: str, caller: Viewer, request: Request, gateway: GatewayDep, wait: Wait = 0.0
) -> Plan:
    """A plan; with `wait` its end is waited for, 30 seconds at most."""
    async with gateway.database.begin() as connection:
        await service.find(connection, caller, plan_id)
    return service.plan_of(await awaited(gateway, caller, plan_id, wait, request))
