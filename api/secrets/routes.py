"""Routes of secrets."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from api.auth.caller import Developer, Viewer
from api.gateway import GatewayDep
from api.paging import Wanted, to_page
from api.secrets import service
from stores import secrets as store
from venusrl.models.common import Page
from venusrl.models.secrets import Secret, SecretPut
from venusrl.models.spec_base import SecretName

router = APIRouter(prefix="/v1/secrets", tags=["secrets"])

NamePath = Annotated[SecretName, Path(description="Name of a secret.")]


@router.put("/{name}")
async def put_secret(
    name: NamePath, body: SecretPut, caller: Developer, gateway: GatewayDep
) -> Secret:
    """Store a value under a name, over what was there. No answer ever has it again.

    Environment processes that run keep the value they were started with.
    """
    return await service.put(gateway, caller, name, body)


@router.get("")
async def list_secrets(caller: Viewer, wanted: Wanted, gateway: GatewayDep) -> Page[Secret]:
    """Names of the project's secrets and when each was written last."""
    async with gateway.database.begin() as connection:
        found = await store.page(connection, caller.project_id, wanted)
    return to_page(found, service.secret_of)


@router.delete("/{name}", status_code=204)
async def delete_secret(name: NamePath, caller: Developer, gateway: GatewayDep) -> Response:
    """Delete a secret; 409 while a job that has not ended names it: cancel it, or write another value."""
    async with gateway.database.begin() as connection:
        await service.delete(connection, caller, name)
    return Response(status_code=204)
