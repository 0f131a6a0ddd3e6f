"""Rows of one job with one closed group, as the platform would have written them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert

from domain.ids import AttemptId, GroupId, HostId, JobId, RolloutId, group_id, rollout_id
from domain.states import End, HostKind, Purpose
from stores import tables as t
from stores.unit_of_work import Database

JOB = JobId("job_1")
ATTEMPT = AttemptId("att_01jtestattempt")
ORGANIZATION = "org_1"
PROJECT = "prj_1"
VERSION = "ever_1"
NODE = HostId("host_node0")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a member's trajectory lies; None for one that left none."""

    end: End
    uri: str | None = None
    sha: str | None = None
    try_: int = 1


def spec_of(**changes: Any) -> dict[str, Any]:
    """A normalised spec with the parts that the node agent reads."""
    spec: dict[str, Any] = {
        "seed": 3,
        "environments": [{"ref": "calc@1", "config": {}, "split": "train"}],
        "rollout": {
            "group_size": 4,
            "on_truncated": "score",
            "on_failure": {"tries": 3, "then": "shrink", "min_group_size": 2},
        },
        "algorithm": {"advantage": "grpo", "control": None},
        "evaluation": {"tasks": 2, "split": "test"},
    }
    return spec | changes


async def insert_job(
    database: Database,
    spec: Mapping[str, Any],
    *,
    package: tuple[str, str] = ("package", "sha"),
    tasks: Mapping[str, Any] | None = None,
    state: str = "running",
) -> None:
    """Tenant, environment version, job, attempt and the node's claimed lease."""
    rows: list[tuple[Any, dict[str, Any]]] = [
        (t.organization, {"id": ORGANIZATION, "name": "o"}),
        (t.project, {"id": PROJECT, "organization_id": ORGANIZATION, "name": "p"}),
        (
            t.environment,
            {
                "id": "env_1",
                "organization_id": ORGANIZATION,
                "project_id": PROJECT,
                "name": "calc",
                "latest_version": 1,
            },
        ),
        (
            t.environment_version,
            {
                "id": VERSION,
                "environment_id": "env_1",
                "version": 1,
                "content_sha": "c",
                "package_uri": package[0],
                "package_sha": package[1],
                "manifest": {},
                "state": "ready",
            },
        ),
        (
            t.job,
            {
                "id": JOB,
                "organization_id": ORGANIZATION,
                "project_id": PROJECT,
                "name": "j",
                "spec": dict(spec),
                "submitted_spec": {},
                "tasks": dict(tasks or {}),
                "attempt_id": ATTEMPT,
                "state": state,
            },
        ),
        (t.attempt, {"id": ATTEMPT, "job_id": JOB, "number": 1}),
        (
            t.host_lease,
            {"id": NODE, "kind": HostKind.NODE.value, "desired": "up", "owner": "k", "epoch": 1},
        ),
    ]
    async with database.begin() as connection:
        for table, values in rows:
            await connection.execute(insert(table).values(**values))


async def insert_group(
    database: Database,
    members: Sequence[Stored],
    *,
    ordinal: int = 0,
    purpose: Purpose = Purpose.TRAIN,
    task_id: str = "train-0000",
    grade_epoch: int = 1,
    is_open: bool = False,
) -> GroupId:
    """A group whose members have ended; with `is_open` all are still open."""
    group = group_id(ATTEMPT, ordinal)
    async with database.begin() as connection:
        await connection.execute(
            insert(t.rollout_group).values(
                id=group,
                job_id=JOB,
                attempt_id=ATTEMPT,
                organization_id=ORGANIZATION,
                ordinal=ordinal,
                purpose=purpose.value,
                task_id=task_id,
                environment_version_id=VERSION,
                policy_version=0,
                size=len(members),
                open=len(members) if is_open else 0,
                closed_at=None if is_open else func.now(),
                grade_epoch=grade_epoch,
            )
        )
        for index, member in enumerate(members):
            values = {
                "id": rollout_id(group, index),
                "group_id": group,
                "job_id": JOB,
                "attempt_id": ATTEMPT,
                "organization_id": ORGANIZATION,
                "index": index,
                "try": member.try_,
                "hop": 1,
            }
            if not is_open:
                values |= {
                    "closed_at": func.now(),
                    "end": member.end.value,
                    "trajectory_uri": member.uri,
                    "trajectory_sha": member.sha,
                }
            await connection.execute(insert(t.rollout).values(values))
    return group


def rollouts_of(group: GroupId, count: int) -> list[RolloutId]:
    """Ids of the members."""
    return [rollout_id(group, index) for index in range(count)]
