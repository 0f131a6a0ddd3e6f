"""Route of a job's bill."""

from dataclasses import asdict
from urllib.parse import urlencode

from fastapi import APIRouter

from api.auth.caller import Viewer
from api.gateway import GatewayDep
from api.rollouts.service import need_job
from domain.billing import Bucket, Line, Resource
from stores import bill
from venusrl.models.bills import Bill, BillLine, JudgeLine

router = APIRouter(prefix="/v1", tags=["billing"])


@router.get("/jobs/{job_id}/bill")
async def job_bill(job_id: str, caller: Viewer, gateway: GatewayDep) -> Bill:
    """Every engine-, trainer- and sandbox-second of the job in one bucket of a closed list.

    The seconds of a resource sum to the wall time for which it was held. Not final: the job goes on,
    and what is not measured before a rollout's or a step's end is still in the idle buckets.
    """
    await need_job(gateway, caller, job_id)
    async with gateway.database.begin() as connection:
        found = await bill.of_job(connection, caller.project_id, job_id)
        judges = await bill.judges_of_job(connection, caller.project_id, job_id)
    wall = {resource.value: 0.0 for resource in Resource}
    for line in found.lines:
        wall[line.resource.value] += line.seconds
    lines = [_line_of(job_id, line) for line in found.lines]
    asked = [JudgeLine(**asdict(one)) for one in judges]
    return Bill(job_id=job_id, is_final=found.is_final, wall_s=wall, lines=lines, judges=asked)


def _line_of(job_id: str, line: Line) -> BillLine:
    query = urlencode({"bucket": line.bucket.value})
    return BillLine(
        resource=line.resource.value,
        bucket=line.bucket.value,
        seconds=line.seconds,
        rollouts=line.rollouts,
        rollouts_url=f"/v1/jobs/{job_id}/rollouts?{query}",
        retried_url=f"/v1/jobs/{job_id}/rollouts?retried=true"
        if line.bucket is Bucket.INFRASTRUCTURE
        else None,
    )
