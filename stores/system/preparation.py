"""What chores write of environment versions and jobs that are being validated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.names import PREPARE_JOB, VALIDATE_ENVIRONMENT
from stores import events
from stores import tables as t

version = t.environment_version


@dataclass(frozen=True, slots=True)
class Package:
    """Where a package lies."""

    uri: str
    sha: str


@dataclass(frozen=True, slots=True)
class Validated:
    """Outcome of a validation; `splits` counts tasks."""

    passed: bool
    findings: Sequence[Mapping[str, str]]
    splits: Mapping[str, int]
    dependencies: Mapping[str, object] | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """A pinned version of a dataset and its share of the training tasks."""

    name: str
    version: int
    weight: float

    @property
    def ref(self) -> str:
        """As the spec says it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Unprepared:
    """A job in state `validating`: which splits it needs, under which configuration.

    Where datasets are named, they give the tasks of the splits that they have.
    """

    project_id: str
    package: Package
    config: Mapping[str, Any]
    splits: tuple[str, ...]
    train_split: str
    limit: int | None
    datasets: tuple[DatasetUse, ...]
    secrets: Mapping[str, str]
    """Names of secrets by variable."""


async def package(connection: AsyncConnection, version_id: str) -> Package | None:
    """The package of a version."""
    query = select(version.c.package_uri, version.c.package_sha).where(version.c.id == version_id)
    row = (await connection.execute(query)).first()
    return None if row is None else Package(row.package_uri, row.package_sha)


UNDECIDED: Final = ("building", "validating")
"""States of a version that has no outcome yet."""


async def begin_validation(connection: AsyncConnection, version_id: str) -> None:
    """What the version needs is built; one that has an outcome keeps it meanwhile."""
    await connection.execute(
        update(version)
        .where(version.c.id == version_id, version.c.state == "building")
        .values(state="validating")
    )


async def write_validation(
    connection: AsyncConnection, version_id: str, outcome: Validated
) -> None:
    """The version is ready or failed; the first outcome wins, but for one that was asked for again."""
    is_open = true() if outcome.again else version.c.state.in_(UNDECIDED)
    await connection.execute(
        update(version)
        .where(version.c.id == version_id, is_open)
        .values(
            state="ready" if outcome.passed else "failed",
            findings=[dict(one) for one in outcome.findings],
            splits=dict(outcome.splits),
            dependencies=None if outcome.dependencies is None else dict(outcome.dependencies),
        )
    )


async def unprepared(connection: AsyncConnection, job_id: str) -> Unprepared | None:
    """The job, if it still waits for its task lists."""
    query = (
        select(t.job.c.spec, t.job.c.project_id, version.c.package_uri, version.c.package_sha)
        .join(version, version.c.id == t.job.c.environment_version_id)
        .where(t.job.c.id == job_id, t.job.c.state == "validating")
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    use, evaluation = row.spec["environments"][0], row.spec["evaluation"]
    splits = {use["split"]} | ({evaluation["split"]} if evaluation else set())
    return Unprepared(
        project_id=row.project_id,
        package=Package(row.package_uri, row.package_sha),
        config=use["config"],
        splits=tuple(sorted(splits)),
        train_split=use["split"],
        limit=use["limit"],
        datasets=tuple(_dataset(one) for one in use.get("datasets", ())),
        secrets=row.spec.get("secrets", {}),
    )


def _dataset(use: Mapping[str, Any]) -> DatasetUse:
    name, _, number = str(use["ref"]).partition("@")
    return DatasetUse(name, int(number), float(use["weight"]))


async def queue(
    connection: AsyncConnection, job_id: str, lists: Mapping[str, Mapping[str, Any]]
) -> None:
    """Give the job its task lists and queue it; a cancelled job stays cancelled."""
    changed = await connection.execute(
        update(t.job)
        .where(t.job.c.id == job_id, t.job.c.state == "validating")
        .values(tasks={split: dict(one) for split, one in lists.items()}, state="queued")
    )
    if changed.rowcount == 1:
        await events.append(connection, job_id, "job.state", {"state": "queued", "reason": ""})


async def due_operations(
    connection: AsyncConnection, again_after_s: float, running_max_s: float
) -> list[str]:
    """Operations to wake a worker for; marks them as dispatched."""
    operation = t.operation
    late = func.now() - timedelta(seconds=again_after_s)
    dead = func.now() - timedelta(seconds=running_max_s)
    waits = (operation.c.state == "pending") & (
        operation.c.dispatched_at.is_(None) | (operation.c.dispatched_at < late)
    )
    died = (
        (operation.c.state == "running")
        & (operation.c.started_at < dead)
        & (operation.c.dispatched_at < late)
    )
    result = await connection.execute(
        update(operation)
        .where(operation.c.ended_at.is_(None), waits | died)
        .values(dispatched_at=func.now())
        .returning(operation.c.id)
    )
    return sorted(result.scalars())


async def settle_failed(connection: AsyncConnection) -> None:
    """Versions and jobs whose operation failed must not stay in validation."""
    await connection.execute(
        text(
            "update environment_version v set state = 'failed', findings = jsonb_build_array("
            " jsonb_build_object('pointer', '', 'code', o.error->>'code',"
            " 'message', o.error->>'detail', 'hint', '', 'severity', 'error'))"
            " from operation o where o.kind = :kind and o.state = 'failed'"
            " and v.state in ('building', 'validating') and not exists (select 1 from operation n"
            " where n.kind = :kind and n.ended_at is null"
            " and n.request->>'environment_version_id' = v.id)"
            " and v.id = o.request->>'environment_version_id'"
        ),
        {"kind": VALIDATE_ENVIRONMENT},
    )
    failed = await connection.execute(
        text(
            "update job j set state = 'failed', ended_at = now(),"
            " observed_generation = j.generation, failure = jsonb_build_object("
            " 'code', o.error->>'code', 'component', 'environment', 'retryable', false,"
            " 'hint', o.error->>'detail') from operation o where o.kind = :kind"
            " and o.state = 'failed' and j.state = 'validating'"
            " and j.id = o.request->>'job_id' returning j.id, j.failure"
        ),
        {"kind": PREPARE_JOB},
    )
    for row in failed.all():
        body = {"state": "failed", "failure_code": row.failure["code"], "hint": row.failure["hint"]}
        await events.append(connection, row.id, "job.state", body)
