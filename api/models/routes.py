"""Routes of models."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from api.auth.caller import CallerDep, Developer, ProjectCaller
from api.bodies import read_limited
from api.gateway import Gateway, GatewayDep
from api.idempotency import IdempotencyKey, Once, run_once
from api.models import service
from api.paging import Wanted
from api.problems import Problem, findings_of, invalid, not_found
from api.system.registry import models as builtin
from api.uploads import MULTIPART, media_type, received
from stores.models import NewModel
from venusrl.models.common import Page
from venusrl.models.models import ModelCreate, ModelInfo

router = APIRouter(prefix="/v1/models", tags=["models"])

ModelPath = Annotated[str, Path(max_length=100, description="Name or id of a model.")]


@router.post("", status_code=201, response_model=ModelInfo)
async def create_model(
    caller: Developer, request: Request, gateway: GatewayDep, key: IdempotencyKey = None
) -> JSONResponse:
    """Import a model: files (multipart), a checkpoint or a hub revision (JSON).

    The answer's state is `validating`; poll the model until it is `ready` or `failed`, which carries
    findings. Its `ref` is what a job's `model.base` says.
    """
    match media_type(request):
        case "application/json":
            return await _create_from(caller, request, gateway, key)
        case "multipart/form-data":
            return await _upload(caller, request, gateway, key)
        case _:
            detail = f"Send application/json or {MULTIPART}."
            raise Problem(415, "unsupported_media_type", detail)


async def _create_from(
    caller: ProjectCaller, request: Request, gateway: Gateway, key: str | None
) -> JSONResponse:
    data = await read_limited(request, gateway.settings.limits.request_bytes, "The request")
    try:
        body = ModelCreate.model_validate_json(data)
    except ValidationError as error:
        raise invalid(findings_of(error.errors(include_url=False))) from error
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    return await run_once(gateway, once, lambda c: service.create_from(c, gateway, caller, body))


async def _upload(
    caller: ProjectCaller, request: Request, gateway: Gateway, key: str | None
) -> JSONResponse:
    async with received(request, gateway, service.upload_plan(gateway)) as form:
        name = service.check_upload(form)
        id = gateway.ids.new("mdl")
        files = await service.store_upload(gateway, id, form)
        shas = form.shas
    new = NewModel(id, name, f"upload:{id}", {"type": "upload"}, files)
    once = Once(caller.key_id, key, request.url.path, {"name": name, "files": shas})
    try:
        answer = await run_once(gateway, once, lambda c: service.create(c, gateway, caller, new))
    except Problem:
        await service.remove(gateway, id, shas)
        raise
    if "idempotent-replayed" in answer.headers:
        await service.remove(gateway, id, shas)
    return answer


@router.get("")
async def list_models(caller: CallerDep, wanted: Wanted, gateway: GatewayDep) -> Page[ModelInfo]:
    """Models that a job can start from: built-in ones, then those of the project."""
    async with gateway.database.begin() as connection:
        return await service.page(connection, caller, wanted)


@router.get("/{name}")
async def get_model(name: ModelPath, caller: CallerDep, gateway: GatewayDep) -> ModelInfo:
    """One model, by name or id."""
    found = builtin().get(name)
    if found is not None:
        return service.builtin_info(found)
    if caller.project_id is None:
        raise not_found("model", name, list(builtin()))
    async with gateway.database.begin() as connection:
        return service.model_of(await service.need(connection, caller.project_id, name))


@router.delete("/{name}", status_code=204)
async def delete_model(name: ModelPath, caller: Developer, gateway: GatewayDep) -> Response:
    """Delete a model of the project and its files; 409 while a job that has not ended needs it."""
    async with gateway.database.begin() as connection:
        row = await service.delete(connection, caller, name)
    await service.remove(gateway, row.id, [one["name"] for one in row.files])
    return Response(status_code=204)
