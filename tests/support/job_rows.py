"""Everything that the database holds on one job, read at once for the checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Table, select

from domain.ids import GroupId, JobId
from stores import tables as t
from stores.unit_of_work import AsyncConnection, Database

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobRows:
    """Rows by table, each as a mapping of its columns, in a fixed order."""

    job: Record
    attempts: tuple[Record, ...]
    groups: tuple[Record, ...]
    rollouts: tuple[Record, ...]
    tries: tuple[Record, ...]
    members: tuple[Record, ...]
    steps: tuple[Record, ...]
    leases: tuple[Record, ...]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The normalised spec."""
        spec: Mapping[str, Any] = self.job["spec"]
        return spec

    def steps_of(self, attempt: Record) -> tuple[Record, ...]:
        """Step rows of an attempt in order, its starting policy first."""
        return tuple(step for step in self.steps if step["attempt_id"] == attempt["id"])

    def group_by_id(self) -> dict[GroupId, Record]:
        """Groups by id."""
        return {group["id"]: group for group in self.groups}


async def read_job(database: Database, job_id: str) -> JobRows:
    """All rows of a job in one transaction."""
    async with database.begin() as connection:
        of_job = [t.job.c.id == job_id]
        rollouts = await _rows(connection, t.rollout, t.rollout.c.job_id == JobId(job_id))
        names = [rollout["id"] for rollout in rollouts]
        return JobRows(
            job=(await _rows(connection, t.job, *of_job))[0],
            attempts=await _rows(connection, t.attempt, t.attempt.c.job_id == job_id),
            groups=await _rows(connection, t.rollout_group, t.rollout_group.c.job_id == job_id),
            rollouts=rollouts,
            tries=await _rows(connection, t.rollout_try, t.rollout_try.c.rollout_id.in_(names)),
            members=await _rows(connection, t.batch_member, t.batch_member.c.job_id == job_id),
            steps=await _rows(connection, t.train_step, t.train_step.c.job_id == job_id),
            leases=await _rows(connection, t.host_lease, t.host_lease.c.job_id == job_id),
        )


async def _rows(connection: AsyncConnection, table: Table, *conditions: Any) -> tuple[Record, ...]:
    query = select(table).where(*conditions).order_by(*table.primary_key.columns)
    return tuple(_record(row) for row in await connection.execute(query))


def _record(row: Row[Any]) -> Record:
    return dict(row._mapping)
