"""What a rollout host reads and writes: its job, and the close of a rollout.

A close locks the group before the rollout, the order in which groups are dropped, so that the two
never wait for each other.
"""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import NotFound
from domain.ids import AttemptId, GroupId, JobId, OrganizationId, RolloutId
from domain.states import End
from stores import tables as t
from stores.system.coordination import lower_open

group, rollout = t.rollout_group, t.rollout


@dataclass(frozen=True, slots=True)
class HostedJob:
    """The job of an attempt, as its rollout hosts need it."""

    job_id: JobId
    organization_id: OrganizationId
    spec: dict[str, object]
    manifests: tuple[dict[str, object], ...]
    """`venus.toml` of each environment, in the order of the spec, those of evaluation last."""


@dataclass(frozen=True, slots=True)
class RolloutEnd:
    """A natural end: what the closing transaction writes."""

    rollout_id: RolloutId
    group_id: GroupId
    try_: int
    hop: int
    end: End
    cause: str | None
    trajectory_uri: str
    trajectory_sha: str
    turns: int
    tokens: int
    sampled_tokens: int
    oldest_version: int | None
    newest_version: int | None


class CloseOutcome(StrEnum):
    """What became of a close. `repeated`: an earlier call of the same close had committed."""

    WON = "won"
    REPEATED = "repeated"
    LOST = "lost"


async def job_of(connection: AsyncConnection, attempt: AttemptId) -> HostedJob:
    """The attempt's job; `NotFound` when it was deleted."""
    query = (
        select(t.job.c.id, t.job.c.organization_id, t.job.c.project_id, t.job.c.spec)
        .join(t.attempt, t.attempt.c.job_id == t.job.c.id)
        .where(t.attempt.c.id == attempt)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        raise NotFound(f"no job has attempt {attempt}")
    evaluation = row.spec.get("evaluation") or {}
    uses = [*row.spec["environments"], *evaluation.get("environments", ())]
    refs = [str(one["ref"]) for one in uses]
    manifests = [await _manifest(connection, row.project_id, ref) for ref in refs]
    return HostedJob(
        JobId(row.id), OrganizationId(row.organization_id), dict(row.spec), tuple(manifests)
    )


async def _manifest(connection: AsyncConnection, project_id: str, ref: str) -> dict[str, object]:
    name, _, version = ref.partition("@")
    versions, environments = t.environment_version, t.environment
    query = (
        select(versions.c.manifest)
        .join(environments, environments.c.id == versions.c.environment_id)
        .where(
            environments.c.project_id == project_id,
            environments.c.name == name,
            versions.c.version == int(version),
        )
    )
    manifest = (await connection.execute(query)).scalar_one_or_none()
    if manifest is None:
        raise NotFound(f"no environment {ref}")
    return dict(manifest)


async def close_rollout(connection: AsyncConnection, ended: RolloutEnd) -> CloseOutcome:
    """Compare-and-set on (open, try, hop), then count the group's member as closed."""
    await connection.execute(
        select(group.c.id).where(group.c.id == ended.group_id).with_for_update()
    )
    won = await connection.execute(
        update(rollout)
        .where(
            rollout.c.id == ended.rollout_id,
            rollout.c.closed_at.is_(None),
            rollout.c["try"] == ended.try_,
            rollout.c.hop == ended.hop,
        )
        .values(
            closed_at=func.now(),
            end=ended.end.value,
            cause=ended.cause,
            trajectory_uri=ended.trajectory_uri,
            trajectory_sha=ended.trajectory_sha,
            turns=ended.turns,
            tokens=ended.tokens,
            sampled_tokens=ended.sampled_tokens,
            oldest_version=ended.oldest_version,
            newest_version=ended.newest_version,
        )
    )
    if won.rowcount == 0:
        return await _lost_or_repeated(connection, ended)
    await connection.execute(
        insert(t.rollout_try)
        .values(
            {
                "rollout_id": ended.rollout_id,
                "try": ended.try_,
                "hop": ended.hop,
                "end": ended.end.value,
                "cause": ended.cause or "",
                "counts": False,
            }
        )
        .on_conflict_do_nothing()
    )
    await lower_open(connection, ended.group_id)
    return CloseOutcome.WON


async def _lost_or_repeated(connection: AsyncConnection, ended: RolloutEnd) -> CloseOutcome:
    """Tell a commit whose answer was lost from a close by somebody else."""
    query = select(rollout.c.id).where(
        rollout.c.id == ended.rollout_id,
        rollout.c.closed_at.is_not(None),
        rollout.c["try"] == ended.try_,
        rollout.c.hop == ended.hop,
        rollout.c.trajectory_sha == ended.trajectory_sha,
    )
    found = (await connection.execute(query)).first()
    return CloseOutcome.LOST if found is None else CloseOutcome.REPEATED
