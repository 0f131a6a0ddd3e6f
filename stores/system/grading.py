"""What the grader reads of a closed group, and the one transaction that writes its verdicts.

The commit is a compare-and-set on the group: still pending, not graded, and under the grader's own
grade epoch. Verdicts, advantages, payload reference and the group's figures appear together or not.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import FencedOut
from domain.events import GroupGraded
from domain.ids import AttemptId, GroupId, JobId, RolloutId, TaskId, attempt_of
from domain.states import End, Purpose, Scored, Verdict
from stores import tables as t
from stores.secret_tables import judge_use

group, rollout, version = t.rollout_group, t.rollout, t.environment_version


@dataclass(frozen=True, slots=True)
class ClosedMember:
    """A member of a closed group; without a trajectory when the coordinator closed it."""

    rollout_id: RolloutId
    index: int
    end: End
    trajectory_uri: str | None
    trajectory_sha: str | None


@dataclass(frozen=True, slots=True)
class GroupToGrade:
    """A closed group with everything that names its inputs."""

    group_id: GroupId
    job_id: JobId
    attempt_id: AttemptId
    purpose: Purpose
    size: int
    ordinal: int
    task_id: TaskId
    policy_version: int
    grade_epoch: int
    is_pending: bool
    graded: GroupGraded | None
    environment_version_id: str
    package_uri: str
    package_sha: str
    spec: Mapping[str, object]
    tasks: Mapping[str, Mapping[str, object]]
    """Task lists by name (`domain/task_lists.py`): {name: {uri, sha, count}}."""
    members: tuple[ClosedMember, ...]
    """In index order."""
    environment: int = 0
    """Place of its environment among those of its purpose, in the spec's order."""


@dataclass(frozen=True, slots=True)
class JudgeCount:
    """What a member asked of one judge."""

    judge: str
    calls: int
    failed: int
    prompt_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class MemberVerdict:
    """What is written of one member. `disposition` None leaves it pending: the step decides it."""

    rollout_id: RolloutId
    verdict: Verdict
    advantage: float | None
    disposition: str | None
    components: Mapping[str, object]
    judges: tuple[JudgeCount, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """What is written of a group. `disposition` None leaves it pending."""

    group_id: GroupId
    grade_epoch: int
    usable: int
    zero_variance: bool
    oldest_version: int | None
    mean_reward: float | None
    payload_uri: str | None
    payload_sha: str | None
    disposition: str | None
    members: tuple[MemberVerdict, ...]

    def event(self) -> GroupGraded:
        """The fact that a commit of this makes true."""
        return GroupGraded(
            group_id=self.group_id,
            grade_epoch=self.grade_epoch,
            usable=self.usable,
            zero_variance=self.zero_variance,
            oldest_version=self.oldest_version,
            mean_reward=self.mean_reward,
        )


async def read_group(connection: AsyncConnection, group_id: GroupId) -> GroupToGrade | None:
    """The group; None when it does not exist or has an open member."""
    query = (
        select(
            group,
            version.c.package_uri,
            version.c.package_sha,
            t.job.c.spec,
            t.job.c.tasks,
        )
        .join(t.job, t.job.c.id == group.c.job_id)
        .join(version, version.c.id == group.c.environment_version_id)
        .where(group.c.id == group_id)
    )
    row = (await connection.execute(query)).mappings().first()
    if row is None or row["closed_at"] is None:
        return None
    members = await _members(connection, group_id)
    if members is None:
        return None
    graded = None
    if row["graded_at"] is not None:
        graded = GroupGraded(
            group_id=group_id,
            grade_epoch=row["grade_epoch"],
            usable=row["usable"],
            zero_variance=row["zero_variance"],
            oldest_version=row["oldest_version"],
            mean_reward=row["mean_reward"],
        )
    return GroupToGrade(
        group_id=group_id,
        job_id=JobId(row["job_id"]),
        attempt_id=AttemptId(row["attempt_id"]),
        purpose=Purpose(row["purpose"]),
        size=row["size"],
        ordinal=row["ordinal"],
        task_id=TaskId(row["task_id"]),
        policy_version=row["policy_version"],
        grade_epoch=row["grade_epoch"],
        is_pending=row["disposition"] == "pending",
        graded=graded,
        environment_version_id=row["environment_version_id"],
        package_uri=row["package_uri"],
        package_sha=row["package_sha"],
        spec=row["spec"],
        tasks=row["tasks"],
        members=members,
        environment=row["environment"],
    )


async def _members(
    connection: AsyncConnection, group_id: GroupId
) -> tuple[ClosedMember, ...] | None:
    """Members in index order; None while one of them is open."""
    query = select(rollout).where(rollout.c.group_id == group_id).order_by(rollout.c["index"])
    rows = (await connection.execute(query)).mappings().all()
    if any(row["end"] is None for row in rows):
        return None
    return tuple(
        ClosedMember(
            rollout_id=RolloutId(row["id"]),
            index=row["index"],
            end=End(row["end"]),
            trajectory_uri=row["trajectory_uri"],
            trajectory_sha=row["trajectory_sha"],
        )
        for row in rows
    )


async def commit_verdicts(connection: AsyncConnection, graded: GroupVerdict) -> None:
    """Write everything at once. Raises FencedOut when another grader or a drop came first."""
    won = await connection.execute(
        update(group)
        .where(
            group.c.id == graded.group_id,
            group.c.grade_epoch == graded.grade_epoch,
            group.c.graded_at.is_(None),
            group.c.disposition == "pending",
        )
        .values(
            graded_at=func.now(),
            usable=graded.usable,
            zero_variance=graded.zero_variance,
            oldest_version=graded.oldest_version,
            mean_reward=graded.mean_reward,
            payload_uri=graded.payload_uri,
            payload_sha=graded.payload_sha,
            disposition=graded.disposition or "pending",
        )
    )
    if won.rowcount != 1:
        raise FencedOut(f"{graded.group_id} is not to be graded under {graded.grade_epoch}")
    written = (
        update(rollout)
        .where(rollout.c.id == bindparam("member"))
        .values(
            verdict=bindparam("new_verdict"),
            reward=bindparam("new_reward"),
            unscorable_reason=bindparam("new_reason"),
            advantage=bindparam("new_advantage"),
            disposition=bindparam("new_disposition"),
            components=bindparam("new_components", type_=rollout.c.components.type),
        )
    )
    await connection.execute(written, [_values(member) for member in graded.members])
    attempt_id = attempt_of(graded.group_id)
    used = [
        {"rollout_id": member.rollout_id, "attempt_id": attempt_id, **asdict(count)}
        for member in graded.members
        for count in member.judges
    ]
    if used:
        await connection.execute(insert(judge_use), used)


def _values(member: MemberVerdict) -> dict[str, object]:
    is_scored = isinstance(member.verdict, Scored)
    return {
        "member": member.rollout_id,
        "new_verdict": "scored" if is_scored else "unscorable",
        "new_reward": member.verdict.value if isinstance(member.verdict, Scored) else None,
        "new_reason": None if isinstance(member.verdict, Scored) else member.verdict.reason,
        "new_advantage": member.advantage,
        "new_disposition": member.disposition or "pending",
        "new_components": dict(member.components),
    }
