"""Usage: the intervals of hosts and sandboxes of a project or organization, cut into buckets of time.

The same intervals that bills are made of (`stores.bill`): over the whole life of a job the seconds of
a resource are those of its bill. Node agents serve all jobs; what a job holds of them is sandboxes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

QUERY: Final = """
with held as (
    select i.kind as resource, j.id as job_id, j.project_id, i.started_at, i.ended_at
    from job j join attempt a on a.job_id = j.id
        join host_interval i on i.attempt_id = a.id and i.kind in ('engine', 'trainer')
    where {scope} and a.created_at < :until
    union all
    select 'sandbox', j.id, j.project_id, i.started_at, i.ended_at
    from job j join attempt a on a.job_id = j.id join sandbox_interval i on i.attempt_id = a.id
    where {scope} and a.created_at < :until
), bounded as (
    select resource, job_id, project_id,
        greatest(started_at, cast(:since as timestamptz)) as started_at,
        least(coalesce(ended_at, now()), cast(:until as timestamptz)) as ended_at
    from held where started_at < :until and coalesce(ended_at, now()) > :since
), cut as (
    select b.resource, b.job_id, b.project_id, start as bucket,
        extract(epoch from least(b.ended_at, start + cast(:step as interval))
            - greatest(b.started_at, start)) as seconds
    from bounded b cross join lateral generate_series(
        date_trunc(:unit, b.started_at, 'UTC'), b.ended_at, cast(:step as interval)) start
    where b.ended_at > b.started_at
), line as (
    select bucket, {object} as object, resource, min(project_id) as project_id,
        sum(seconds) as seconds
    from cut where seconds > 0 group by 1, 2, 3
)
select bucket, object, resource, project_id, seconds,
    greatest(bucket, cast(:since as timestamptz)) as bucket_start,
    least(bucket + cast(:step as interval), cast(:until as timestamptz)) as bucket_end
from line
where cast(:bucket as timestamptz) is null
    or (bucket, object, resource) > (:bucket, cast(:object as text), cast(:resource as text))
order by bucket, object, resource
limit :limit
"""

OBJECTS: Final = {"job": "job_id", "project": "project_id", "resource": "cast('' as text)"}
"""What a line is summed over, by the API's word."""

STEPS: Final = {"hour": "1 hour", "day": "24 hours"}
"""Buckets are whole hours or days of UTC."""

SCOPES: Final = {
    "project": "j.project_id = :project_id",
    "organization": "j.organization_id = :organization_id",
    "all": "true",
}


@dataclass(frozen=True, slots=True)
class Place:
    """The last line of a page."""

    bucket: datetime
    object: str
    resource: str


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """Which usage, and how it is summed."""

    group_by: str
    bucket: str
    since: datetime
    until: datetime
    after: Place | None
    limit: int


async def lines(
    connection: AsyncConnection,
    organization_id: str | None,
    project_id: str | None,
    wanted: UsageWanted,
) -> Sequence[Row[Any]]:
    """Lines in the order of bucket, object and resource; of a project, an organization, or all."""
    scope = "all" if organization_id is None else "organization"
    if project_id is not None:
        scope = "project"
    # Words of closed sets; everything that a caller says is a parameter.
    statement = QUERY.format(scope=SCOPES[scope], object=OBJECTS[wanted.group_by])
    after = wanted.after
    values: dict[str, object] = {
        "since": wanted.since,
        "until": wanted.until,
        "unit": wanted.bucket,
        "step": STEPS[wanted.bucket],
        "bucket": None if after is None else after.bucket,
        "object": None if after is None else after.object,
        "resource": None if after is None else after.resource,
        "limit": wanted.limit,
    }
    if scope != "all":
        values[f"{scope}_id"] = project_id if scope == "project" else organization_id
    return (await connection.execute(text(statement), values)).all()
