"""Routes of what a job's environments printed."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.auth.caller import Viewer
from api.gateway import GatewayDep
from api.logs import service
from api.rollouts.service import need_job, need_rollout
from stores.outputs import Wanted
from venusrl.models.common import Page
from venusrl.models.logs import Component, LogLine

router = APIRouter(prefix="/v1", tags=["logs"])

LINES_MAX = 1_000
"""Lines of one page."""

After = Annotated[str | None, Query(max_length=100)]
Lines = Annotated[int, Query(ge=1, le=LINES_MAX)]


@router.get("/jobs/{job_id}/logs")
async def job_logs(
    job_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    component: Annotated[Component | None, Query()] = None,
    rollout: Annotated[str | None, Query(max_length=100)] = None,
    after: After = None,
    limit: Lines = 200,
) -> Page[LogLine]:
    """What environments and graders of the job printed, by the end of the try that printed it.

    The last 64 KiB of a try are kept, for 30 days; of a try that still runs nothing is shown yet.
    """
    await need_job(gateway, caller, job_id)
    wanted = Wanted(job_id, rollout, component)
    return await service.page(gateway, caller, wanted, after, limit)


@router.get("/rollouts/{rollout_id}/logs")
async def rollout_logs(
    rollout_id: str,
    caller: Viewer,
    gateway: GatewayDep,
    component: Annotated[Component | None, Query()] = None,
    after: After = None,
    limit: Lines = 200,
) -> Page[LogLine]:
    """What the environment printed in each try of the rollout, failed ones too, and its graders."""
    row = await need_rollout(gateway, caller, rollout_id)
    wanted = Wanted(row.job_id, rollout_id, component)
    return await service.page(gateway, caller, wanted, after, limit)
