"""Routes of jobs."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from api.auth.caller import Developer, ProjectCaller, Viewer
from api.bodies import number_in
from api.gateway import Gateway, GatewayDep, gateway_of
from api.idempotency import IdempotencyKey, Once, run_once
from api.jobs import service, starts, stream, views
from api.paging import Wanted, to_page
from api.problems import not_found
from domain.states import JobState
from stores import jobs
from stores.jobs import PointsWanted
from venusrl.models.common import Page
from venusrl.models.job_schema import job_schema
from venusrl.models.jobs import (
    Branch,
    Evaluation,
    Event,
    Job,
    JobPatch,
    Ledger,
    LedgerLine,
    Metric,
    Restart,
    Validation,
)


class SchemaResponse(JSONResponse):
    """A JSON Schema."""

    media_type = "application/schema+json"


router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Spec = Annotated[dict[str, Any], Body(description="A job spec; its schema is JobSpec.")]

POINTS_MAX = 10_000
"""Metric points of one answer."""


@router.post("/validate")
async def validate_job(spec: Spec, caller: Viewer, gateway: GatewayDep) -> Validation:
    """Findings, and the normalised spec with every `auto` resolved and explained; changes nothing."""
    async with gateway.database.begin() as connection:
        outcome = await service.check(connection, gateway, caller, spec)
    return views.validation_of(outcome)


@router.get("/schema", response_class=SchemaResponse)
async def job_spec_schema() -> JSONResponse:
    """The JSON Schema of a job spec, for editors; needs no key."""
    return SchemaResponse(job_schema(), headers={"Cache-Control": "public, max-age=300"})


@router.post("", status_code=201, response_model=Job)
async def create_job(
    spec: Spec,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """Create a job. It queues where capacity is short; it is never refused for that."""
    once = Once(caller.key_id, key, request.url.path, spec)
    return await run_once(gateway, once, lambda c: service.create(c, gateway, caller, spec))


@router.get("")
async def list_jobs(
    caller: Viewer,
    wanted: Wanted,
    gateway: GatewayDep,
    state: Annotated[JobState | None, Query()] = None,
) -> Page[Job]:
    """Jobs of the project."""
    async with gateway.database.begin() as connection:
        found = await jobs.page(connection, caller.project_id, wanted, state)
    return to_page(found, views.job_of)


@router.get("/{job_id}")
async def get_job(job_id: str, caller: Viewer, gateway: GatewayDep, response: Response) -> Job:
    """One job; its ETag goes into If-Match of a PATCH."""
    row = await _job(gateway, caller, job_id)
    response.headers["ETag"] = views.etag_of(row)
    return views.job_of(row)


@router.patch("/{job_id}")
async def patch_job(
    job_id: str,
    body: JobPatch,
    caller: Developer,
    gateway: GatewayDep,
    response: Response,
    if_match: Annotated[str | None, Header()] = None,
) -> Job:
    """Change name, labels, priority, max_steps or budget, also while the job runs."""
    async with gateway.database.begin() as connection:
        row = await service.patch(connection, gateway, caller, (job_id, body), if_match)
    response.headers["ETag"] = views.etag_of(row)
    return views.job_of(row)


@router.delete("/{job_id}", status_code=204)
async def delete_job(job_id: str, caller: Developer, gateway: GatewayDep) -> None:
    """Delete an ended job with its trajectories, logs and checkpoints; kept and needed ones stay."""
    async with gateway.database.begin() as connection:
        await service.delete(connection, caller, job_id)


async def _want(
    request: Request, caller: ProjectCaller, job_id: str, desired: str, key: str | None
) -> JSONResponse:
    gateway = gateway_of(request)
    once = Once(caller.key_id, key, request.url.path, None)
    return await run_once(
        gateway, once, lambda c: service.want(c, caller, job_id, desired), status=202
    )


@router.post("/{job_id}/pause", status_code=202, response_model=Job)
async def pause_job(
    job_id: str, caller: Developer, request: Request, key: IdempotencyKey = None
) -> JSONResponse:
    """Drain, checkpoint, give everything back; resume goes on with the next step."""
    return await _want(request, caller, job_id, "pause", key)


@router.post("/{job_id}/resume", status_code=202, response_model=Job)
async def resume_job(
    job_id: str, caller: Developer, request: Request, key: IdempotencyKey = None
) -> JSONResponse:
    """Go on after a pause, in the same attempt."""
    return await _want(request, caller, job_id, "run", key)


@router.post("/{job_id}/cancel", status_code=202, response_model=Job)
async def cancel_job(
    job_id: str, caller: Developer, request: Request, key: IdempotencyKey = None
) -> JSONResponse:
    """End the job with a checkpoint of its last step."""
    return await _want(request, caller, job_id, "cancel", key)


@router.post("/{job_id}/restart", status_code=202, response_model=Job)
async def restart_job(
    job_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    body: Annotated[Restart | None, Body()] = None,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """A new attempt of an ended job, from a checkpoint (the newest by default)."""
    asked = body or Restart()
    once = Once(caller.key_id, key, request.url.path, asked.model_dump())
    return await run_once(
        gateway, once, lambda c: starts.restart(c, gateway, caller, (job_id, asked)), status=202
    )


@router.post("/{job_id}/branch", status_code=201, response_model=Job)
async def branch_job(
    job_id: str,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    body: Annotated[Branch | None, Body()] = None,
    key: IdempotencyKey = None,
) -> JSONResponse:
    """A new job from a copy of this one's spec and a checkpoint (the newest by default)."""
    asked = body or Branch()
    once = Once(caller.key_id, key, request.url.path, asked.model_dump())
    return await run_once(
        gateway, once, lambda c: starts.branch(c, gateway, caller, (job_id, asked))
    )


@router.get("/{job_id}/events", response_model=Page[Event])
async def job_events(
    job_id: str,
    caller: Viewer,
    request: Request,
    gateway: GatewayDep,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    types: Annotated[str, Query(max_length=500)] = "",
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
    accept: Annotated[str, Header()] = "application/json",
) -> Any:
    """Events of the job: a page of JSON, or a live stream with `Accept: text/event-stream`."""
    await _job(gateway, caller, job_id)
    wanted = tuple(part for part in types.split(",") if part)
    if "text/event-stream" in accept:
        start = max(after, number_in(request.headers, "last-event-id"))
        source = stream.follow(gateway, caller.project_id, job_id, start, types=wanted)
        return _stream(stream.until_disconnected(request, source))
    async with gateway.database.begin() as connection:
        rows = await jobs.events_after(
            connection, caller.project_id, job_id, after, types=wanted, limit=limit + 1
        )
    more = len(rows) > limit
    data = [stream.event_of(row) for row in rows[:limit]]
    return Page[Event](data=data, has_more=more, next=str(data[-1].id) if more else None)


def _stream(source: AsyncIterator[str]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(source, media_type="text/event-stream", headers=headers)


@router.get("/{job_id}/metrics")
async def job_metrics(
    job_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    names: Annotated[str, Query(max_length=2000)] = "",
    after_step: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
    after: Annotated[str | None, Query(pattern=r"^[0-9]{1,9}:[0-9]{1,9}:.{1,200}$")] = None,
    limit: Annotated[int, Query(ge=1, le=POINTS_MAX)] = POINTS_MAX,
) -> Page[Metric]:
    """Points of the job's series; a step has at most one point per series.

    `after_step` gives what is new since a step, `after` the next page.
    """
    await _job(gateway, caller, job_id)
    wanted = PointsWanted(
        names=[part for part in names.split(",") if part],
        after_step=after_step,
        after=views.place_of(after),
        limit=limit + 1,
    )
    async with gateway.database.begin() as connection:
        rows = await jobs.metrics(connection, caller.project_id, job_id, wanted)
    more = len(rows) > limit
    rows = rows[:limit]
    data = [Metric.model_validate(row, from_attributes=True) for row in rows]
    return Page[Metric](data=data, has_more=more, next=views.cursor_of(rows[-1]) if more else None)


@router.get("/{job_id}/progress")
async def job_progress(job_id: str, caller: Viewer, gateway: GatewayDep) -> dict[str, Any]:
    """What the job does at this moment, and why it waits if it does; an ended one does nothing."""
    return views.progress_of(await _job(gateway, caller, job_id))


@router.get("/{job_id}/evaluations")
async def job_evaluations(job_id: str, caller: Viewer, gateway: GatewayDep) -> Page[Evaluation]:
    """Finished held-out evaluations."""
    await _job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        rows = await jobs.evaluations(connection, caller.project_id, job_id)
    data = [Evaluation.model_validate(row, from_attributes=True) for row in rows]
    return Page[Evaluation](data=data, has_more=False)


@router.get("/{job_id}/ledger")
async def job_ledger(job_id: str, caller: Viewer, gateway: GatewayDep) -> Ledger:
    """Every rollout of the job once, counted by purpose, end, verdict and disposition."""
    await _job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        rows = await jobs.ledger(connection, caller.project_id, job_id)
    lines = [LedgerLine.model_validate(row, from_attributes=True) for row in rows]
    return Ledger(rollouts=sum(line.rollouts for line in lines), lines=lines)


async def _job(gateway: Gateway, caller: ProjectCaller, job_id: str) -> Any:
    async with gateway.database.begin() as connection:
        row = await jobs.find(connection, caller.project_id, job_id)
    if row is None:
        raise not_found("job", job_id)
    return row
