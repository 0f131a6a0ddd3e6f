"""Routes of operations."""

from fastapi import APIRouter, Request

from api.auth.caller import Viewer
from api.gateway import GatewayDep
from api.operations.service import Wait, awaited
from venusrl.models.checkpoints import Operation

router = APIRouter(prefix="/v1/operations", tags=["operations"])


@router.get("/{operation_id}")
async def get_operation(
    operation_id: str, caller: Viewer, request: Request, gateway: GatewayDep, wait: Wait = 0.0
) -> Operation:
    """An operation; with `wait` its end is waited for, 30 seconds at most."""
    return await awaited(gateway, caller, operation_id, wait, request)
