"""What the leader writes of a job's schedule: only what changed, under its fence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, GroupId, JobId
from stores import tables as t

schedule, group = t.job_schedule, t.job_schedule_group


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """What differs from what was written last."""

    job_id: JobId
    attempt_id: AttemptId
    head: Mapping[str, object]
    profile: Mapping[str, object]
    groups: Mapping[GroupId, Mapping[str, object]]
    """New and changed ones."""
    gone: Sequence[GroupId] = ()
    is_whole: bool = False
    """Nothing else of the job stays: a new leader does not know what its predecessor wrote."""


async def write(connection: AsyncConnection, change: ScheduleChange) -> None:
    """Write one job's change."""
    mine = group.c.job_id == change.job_id
    if change.is_whole:
        await connection.execute(delete(group).where(mine))
    elif change.gone:
        await connection.execute(delete(group).where(mine, group.c.group_id.in_(change.gone)))
    if change.groups:
        rows = [
            {"job_id": change.job_id, "group_id": name, "body": dict(body)}
            for name, body in change.groups.items()
        ]
        await _upsert(connection, insert(group).values(rows), ("job_id", "group_id"), ("body",))
    head = {
        "job_id": change.job_id,
        "attempt_id": change.attempt_id,
        "head": dict(change.head),
        "profile": dict(change.profile),
        "written_at": func.now(),
    }
    changed = ("attempt_id", "head", "profile", "written_at")
    await _upsert(connection, insert(schedule).values(head), ("job_id",), changed)


async def forget(connection: AsyncConnection, job_id: JobId) -> None:
    """The job is not active any more: nothing of it waits. Its last profile stays."""
    await connection.execute(delete(group).where(group.c.job_id == job_id))


async def _upsert(
    connection: AsyncConnection, rows: Any, key: Sequence[str], changed: Sequence[str]
) -> None:
    values = {name: rows.excluded[name] for name in changed}
    await connection.execute(rows.on_conflict_do_update(index_elements=list(key), set_=values))
