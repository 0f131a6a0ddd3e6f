"""Routes of groups, rollouts and trajectories."""

from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from api.auth.caller import Developer, Viewer
from api.gateway import Gateway, gateway_of
from api.idempotency import IdempotencyKey, Once, run_once
from api.jobs.storable import unstorable
from api.operations.service import Wait, answer
from api.paging import Wanted, to_page
from api.problems import invalid, not_found
from api.rollouts import branches, export, service
from domain.billing import Bucket
from domain.states import End, Purpose
from stores import branches as stored_branches
from stores import rollouts
from stores.rollouts import Filters
from venusrl.models.branches import Branch, BranchRequest
from venusrl.models.checkpoints import Operation
from venusrl.models.common import Page
from venusrl.models.logs import Spans
from venusrl.models.rollouts import Group, Rollout, RolloutDetail, Trajectory

router = APIRouter(prefix="/v1", tags=["rollouts"])

GatewayDep = Annotated[Gateway, Depends(gateway_of)]
Text = Annotated[str | None, Query(max_length=200)]
Number = Annotated[int | None, Query(ge=0, le=2**31 - 1)]
DISPOSITION = r"^(pending|(trained|evaluated|dropped)(\([a-z0-9_]+\))?)$"
Disposition = Annotated[str | None, Query(max_length=64, pattern=DISPOSITION)]
Reward = Annotated[float | None, Query(allow_inf_nan=False)]


def group_filters(
    step: Number = None,
    task_id: Text = None,
    purpose: Annotated[Purpose | None, Query()] = None,
    disposition: Disposition = None,
    policy_version: Number = None,
    reward_min: Reward = None,
    reward_max: Reward = None,
) -> Filters:
    """Dependency: which groups are wanted.

    `step` is the step that they train, `policy_version` the one at their creation, `disposition`
    a whole one, `dropped(stale)`, or its kind, `dropped`; bounds of the mean reward are inclusive.
    """
    return Filters(
        step=step,
        task_id=task_id,
        purpose=purpose,
        disposition=disposition,
        policy_version=policy_version,
        reward_min=reward_min,
        reward_max=reward_max,
    )


def rollout_filters(
    groups: Annotated[Filters, Depends(group_filters)],
    group_id: Text = None,
    end: Annotated[End | None, Query()] = None,
    verdict: Annotated[Literal["scored", "unscorable"] | None, Query()] = None,
    bucket: Annotated[Bucket | None, Query()] = None,
    retried: Annotated[bool | None, Query()] = None,
) -> Filters:
    """Dependency: which rollouts are wanted.

    `policy_version` is that of the oldest sampled token; `bucket` is a line of the job's bill;
    `retried`: a try of it failed, whatever became of it then.
    """
    return replace(
        groups, group_id=group_id, end=end, verdict=verdict, bucket=bucket, retried=retried
    )


@router.get("/jobs/{job_id}/groups")
async def list_groups(
    job_id: str,
    caller: Viewer,
    wanted: Wanted,
    gateway: GatewayDep,
    filters: Annotated[Filters, Depends(group_filters)],
) -> Page[Group]:
    """Groups of a job."""
    await service.need_job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        found = await rollouts.groups(
            connection, caller.project_id, job_id, filters=filters, request=wanted
        )
    return to_page(found, service.group_of)


@router.get("/groups/{group_id}")
async def get_group(group_id: str, caller: Viewer, gateway: GatewayDep) -> Group:
    """One group."""
    async with gateway.database.begin() as connection:
        row = await rollouts.find_group(connection, caller.project_id, group_id)
    if row is None:
        raise not_found("group", group_id)
    return service.group_of(row)


@router.get("/jobs/{job_id}/rollouts")
async def list_rollouts(
    job_id: str,
    caller: Viewer,
    wanted: Wanted,
    gateway: GatewayDep,
    filters: Annotated[Filters, Depends(rollout_filters)],
) -> Page[Rollout]:
    """Rollouts of a job; what happened to each is in the answer for one rollout."""
    await service.need_job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        found = await rollouts.page(
            connection, caller.project_id, job_id, filters=filters, request=wanted
        )
    return to_page(found, service.rollout_of)


@router.get("/jobs/{job_id}/rollouts/export", response_class=Response)
async def export_rollouts(
    job_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    filters: Annotated[Filters, Depends(rollout_filters)],
    format_: Annotated[export.Format, Query(alias="format")] = "jsonl",
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> StreamingResponse:
    """Trajectories of a job, streamed: one record a rollout, in the order of their ids.

    A record has the row, and its tokens as a chain of nodes with ids, mask, log-probabilities and
    policy versions; without tokens it says why under `error`.
    """
    await service.need_job(gateway, caller, job_id)
    wish = export.Wish(job_id, filters, after)
    headers = {"Content-Disposition": f'attachment; filename="{job_id}.{format_}"'}
    return StreamingResponse(
        export.stream(gateway, caller, wish, format_),
        media_type=export.MEDIA_TYPES[format_],
        headers=headers,
    )


@router.get("/rollouts/{rollout_id}")
async def get_rollout(rollout_id: str, caller: Viewer, gateway: GatewayDep) -> RolloutDetail:
    """One rollout with everything that happened to it."""
    return await service.detail(gateway, caller, rollout_id)


@router.get("/rollouts/{rollout_id}/spans")
async def get_spans(rollout_id: str, caller: Viewer, gateway: GatewayDep) -> Spans:
    """Where its time went: by try, placement and turn, then grading and its batch."""
    return await service.spans(gateway, caller, rollout_id)


@router.get("/rollouts/{rollout_id}/trajectory")
async def get_trajectory(rollout_id: str, caller: Viewer, gateway: GatewayDep) -> Trajectory:
    """Token ids with mask, log-probabilities and policy versions; turns and messages."""
    return await service.trajectory(gateway, caller, rollout_id)


@router.post(
    "/rollouts/{rollout_id}/branch",
    status_code=202,
    response_model=Operation,
    responses={200: {"model": Operation, "description": "It ended within `wait`."}},
)
async def branch_rollout(
    rollout_id: str,
    body: BranchRequest,
    caller: Developer,
    request: Request,
    gateway: GatewayDep,
    key: IdempotencyKey = None,
    wait: Wait = 0.0,
) -> JSONResponse:
    """Continue a closed rollout from before some of its turns, several times each; never trained.

    The recorded actions run again in fresh sandboxes and must be answered as recorded, else the
    operation fails with `replay_diverged`. Its result has a verdict for each continuation.
    """
    if found := unstorable(body.model_dump()):
        raise invalid(found, "The request holds what cannot be stored.")
    asked = (rollout_id, body)
    once = Once(caller.key_id, key, request.url.path, body.model_dump(mode="json"))
    started = await run_once(
        gateway, once, lambda c: branches.start(c, gateway, caller, asked), status=202
    )
    return await answer(gateway, caller, started, wait, request)


@router.get("/rollouts/{rollout_id}/branches")
async def list_branches(
    rollout_id: str, caller: Viewer, wanted: Wanted, gateway: GatewayDep
) -> Page[Branch]:
    """Branches of a rollout with their results."""
    await service.need_rollout(gateway, caller, rollout_id)
    async with gateway.database.begin() as connection:
        found = await stored_branches.page(connection, caller.project_id, rollout_id, wanted)
    return to_page(found, branches.branch_of)


@router.get("/rollouts/{rollout_id}/branches/{branch_id}/trajectory")
async def get_branch_trajectory(
    rollout_id: str,
    branch_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    turn: Annotated[int, Query(ge=0, le=9_999)],
    index: Annotated[int, Query(ge=0, le=255)],
) -> Trajectory:
    """Token ids of one continuation, its prefix among them; turns and messages."""
    return await branches.trajectory(gateway, caller, (rollout_id, branch_id), turn, index)
