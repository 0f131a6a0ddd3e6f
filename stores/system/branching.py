"""What a branch starts from: a closed rollout with everything that names how it was made."""

from typing import Any

from sqlalchemy import Row, Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t

group, rollout, job = t.rollout_group, t.rollout, t.job


async def rollout_to_branch(
    connection: AsyncConnection, project_id: str, rollout_id: str
) -> Row[Any] | None:
    """The rollout with its group's and its job's columns; None when the project has none such."""
    query: Select[Any] = (
        select(
            rollout.c.id,
            rollout.c.index.label("member_index"),
            rollout.c.trajectory_uri,
            rollout.c.trajectory_sha,
            group.c.id.label("group_id"),
            group.c.ordinal,
            group.c.purpose,
            group.c.environment,
            group.c.environment_version_id,
            group.c.task_id,
            job.c.id.label("job_id"),
            group.c.attempt_id,
            job.c.organization_id,
            job.c.spec,
            job.c.tasks,
        )
        .join(group, group.c.id == rollout.c.group_id)
        .join(job, job.c.id == rollout.c.job_id)
        .where(
            rollout.c.id == rollout_id,
            job.c.project_id == project_id,
            job.c.deleted_at.is_(None),
        )
    )
    found: Row[Any] | None = (await connection.execute(query)).first()
    return found
