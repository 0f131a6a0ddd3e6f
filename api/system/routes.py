"""Routes of health and status."""

from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.auth.caller import CallerDep
from api.gateway import GatewayDep
from stores import status

router = APIRouter(tags=["system"])


@router.get("/healthz", include_in_schema=False)
async def healthz(gateway: GatewayDep) -> dict[str, str]:
    """200 when the database answers."""
    async with gateway.database.begin() as connection:
        await status.ping(connection)
    return {"status": "ok"}


@router.get("/metrics", include_in_schema=False)
async def metrics() -> Response:
    """Prometheus text of this process."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/status")
async def get_status(caller: CallerDep, gateway: GatewayDep) -> dict[str, Any]:
    """Whether a scheduler leads, hosts by kind, jobs by state; numbers only, no tenant's names."""
    async with gateway.database.begin() as connection:
        return await status.summary(connection)
