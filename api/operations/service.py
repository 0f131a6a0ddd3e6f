"""Waiting for the end of an operation."""

import json
from typing import Annotated, Any, Final

from fastapi import Query, Request
from fastapi.responses import JSONResponse

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import not_found
from infra.clock import SystemClock
from stores import checkpoints
from venusrl.models.checkpoints import Operation

WAIT_MAX_S: Final = 30.0
"""Longest answer held open; below the usual idle timeout of proxies."""

POLL_S: Final = 0.1
"""How late the end of an operation is seen by one who waits for it."""

ENDED: Final = ("done", "failed")

Wait = Annotated[float, Query(ge=0.0, le=WAIT_MAX_S, description="Seconds to wait for the end.")]


def operation_of(row: Any) -> Operation:
    """Wire form of an operation row."""
    return Operation.model_validate(row, from_attributes=True)


async def awaited(
    gateway: Gateway,
    caller: ProjectCaller,
    operation_id: str,
    wait_s: float,
    request: Request,
) -> Operation:
    """The operation once it has ended, or as it is after `wait_s` or when nobody listens. Raises 404."""
    clock = SystemClock()
    end = clock.monotonic() + wait_s
    while True:
        async with gateway.database.begin() as connection:
            row = await checkpoints.find_operation(connection, caller.project_id, operation_id)
        if row is None:
            raise not_found("operation", operation_id)
        is_over = row.state in ENDED or clock.monotonic() >= end
        if is_over or await request.is_disconnected():
            return operation_of(row)
        await clock.sleep(POLL_S)


async def answer(
    gateway: Gateway,
    caller: ProjectCaller,
    started: JSONResponse,
    wait_s: float,
    request: Request,
) -> JSONResponse:
    """What a verb says that started an operation: 200 with the ended one, 202 while it runs."""
    operation_id = str(json.loads(bytes(started.body))["id"])
    operation = await awaited(gateway, caller, operation_id, wait_s, request)
    status = 200 if operation.state in ENDED else 202
    return JSONResponse(operation.model_dump(mode="json"), status)
