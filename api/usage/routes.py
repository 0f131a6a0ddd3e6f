"""Route of usage."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from api.auth.caller import CallerDep
from api.gateway import GatewayDep
from api.problems import Finding, invalid
from infra.clock import SystemClock
from stores import usage
from stores.paging import LIMIT_MAX
from stores.usage import Place, UsageWanted
from venusrl.models.common import Page
from venusrl.models.usage import BucketSize, GroupBy, UsageLine

router = APIRouter(prefix="/v1/usage", tags=["billing"])

SPANS: Final = {"hour": timedelta(days=1), "day": timedelta(days=30)}
"""What is shown when no `since` is given."""

SPAN_MAX: Final = timedelta(days=400)
"""Between `since` and `until`: a year with its edges, in at most 9,600 hours."""

EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)

CURSOR: Final = re.compile(r"([0-9]{1,11}):([0-9a-z_]{0,100}):([a-z]{1,20})")


@router.get("")
async def get_usage(
    caller: CallerDep,
    gateway: GatewayDep,
    group_by: GroupBy = "job",
    bucket: BucketSize = "day",
    since: Annotated[AwareDatetime | None, Query()] = None,
    until: Annotated[AwareDatetime | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 50,
    after: Annotated[str | None, Query(max_length=140)] = None,
) -> Page[UsageLine]:
    """Seconds for which engines, trainers and sandboxes were held, by bucket of time and object.

    Of the key's project, or of all projects of its organization. Lines of one job and resource
    neither gap nor overlap; over its whole life they sum to the job's bill. What is still held counts
    up to now.
    """
    end = until or SystemClock().now()
    _check_bounds(end)
    start = since or end - SPANS[bucket]
    _check_bounds(start)
    _check_span(start, end)
    wanted = UsageWanted(group_by, bucket, start, end, _place(after), limit + 1)
    scope = (caller.organization_id, caller.project_id)
    async with gateway.database.begin() as connection:
        rows = await usage.lines(connection, *scope, wanted)
    more = len(rows) > limit
    shown = rows[:limit]
    data = [_line_of(group_by, row) for row in shown]
    return Page[UsageLine](data=data, has_more=more, next=_cursor(shown[-1]) if more else None)


def _check_bounds(at: datetime) -> None:
    if not EARLIEST <= at <= LATEST:
        message = f"It must be between the years {EARLIEST.year} and {LATEST.year}."
        raise invalid([Finding("/since", "bad_range", message)])


def _check_span(since: datetime, until: datetime) -> None:
    if not timedelta() <= until - since <= SPAN_MAX:
        message = f"`until` must come after it, and by at most {SPAN_MAX.days} days."
        raise invalid([Finding("/since", "bad_range", message)])


def _line_of(group_by: str, row: Any) -> UsageLine:
    return UsageLine(
        bucket_start=row.bucket_start,
        bucket_end=row.bucket_end,
        resource=row.resource,
        project_id=None if group_by == "resource" else row.project_id,
        job_id=row.object if group_by == "job" else None,
        seconds=float(row.seconds),
    )


def _cursor(row: Any) -> str:
    return f"{int(row.bucket.timestamp())}:{row.object}:{row.resource}"


def _place(after: str | None) -> Place | None:
    if after is None:
        return None
    found = CURSOR.fullmatch(after)
    if found is None or int(found[1]) > LATEST.timestamp():
        raise invalid([Finding("/after", "bad_cursor", "Take it from `next` of a page.")])
    return Place(datetime.fromtimestamp(int(found[1]), UTC), found[2], found[3])
