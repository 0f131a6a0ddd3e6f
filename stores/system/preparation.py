"""What chores write of environment versions and jobs that are being validated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import func, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.task_lists import evaluated_list, own_list
from infra.names import PREPARE_JOB, VALIDATE_ENVIRONMENT
from stores import events
from stores import tables as t
from stores.system.jobs import PackageRef, packages_of

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
class Part:
    """One environment of a job with the task lists that it has to give.

    Where datasets are named, they give the tasks of the splits that they have.
    """

    pointer: str
    """Where it stands in the spec."""
    ref: str
    package: Package | None
    """None when the version is gone."""
    config: Mapping[str, Any]
    lists: Mapping[str, str]
    """Name of the list by split."""
    limited_split: str
    limit: int | None
    filter: Mapping[str, Any]
    datasets: tuple[DatasetUse, ...]


@dataclass(frozen=True, slots=True)
class Unprepared:
    """A job in state `validating`: which environments it uses, and where its attempt starts."""

    project_id: str
    spec: Mapping[str, Any]
    parts: tuple[Part, ...]
    base_step: int
    next_ordinal: int
    secrets: Mapping[str, str]
    """Names of secrets by variable; every environment of the job gets them."""


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
        select(t.job.c.spec, t.job.c.project_id, t.attempt.c.base_step, t.attempt.c.next_ordinal)
        .join(t.attempt, t.attempt.c.id == t.job.c.attempt_id)
        .where(t.job.c.id == job_id, t.job.c.state == "validating")
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    uses = _uses(row.spec)
    packages = await packages_of(connection, row.project_id, [use["ref"] for _, use, _ in uses])
    parts = tuple(_part(use, packages) for use in uses)
    secrets = row.spec.get("secrets") or {}
    return Unprepared(row.project_id, row.spec, parts, row.base_step, row.next_ordinal, secrets)


_Use = tuple[str, Mapping[str, Any], Mapping[str, str]]
"""Pointer of an environment, its entry, and the names of its lists by split."""


def _uses(spec: Mapping[str, Any]) -> list[_Use]:
    evaluation = spec.get("evaluation") or {}
    evaluated = evaluation.get("environments") or ()
    uses: list[_Use] = []
    for number, use in enumerate(spec["environments"]):
        splits = {use["split"]}
        if evaluation and not evaluated:
            splits.add(evaluation["split"])
        lists = {split: own_list(number, split) for split in sorted(splits)}
        uses.append((f"/environments/{number}", use, lists))
    for number, use in enumerate(evaluated):
        lists = {use["split"]: evaluated_list(number, use["split"])}
        uses.append((f"/evaluation/environments/{number}", use, lists))
    return uses


def _part(use: _Use, packages: Mapping[str, PackageRef]) -> Part:
    pointer, entry, lists = use
    found = packages.get(entry["ref"])
    return Part(
        pointer=pointer,
        ref=entry["ref"],
        package=None if found is None else Package(found.uri, found.sha),
        config=entry["config"],
        lists=lists,
        limited_split=entry["split"],
        limit=entry["limit"],
        filter=entry.get("filter") or {},
        datasets=tuple(_dataset(one) for one in entry.get("datasets", ())),
    )


def _dataset(use: Mapping[str, Any]) -> DatasetUse:
    name, _, number = str(use["ref"]).partition("@")
    return DatasetUse(name, int(number), float(use["weight"]))


async def waiting_spec(connection: AsyncConnection, job_id: str) -> Mapping[str, Any] | None:
    """The spec of a job that still waits for its task lists, locked: nobody changes it meanwhile."""
    query = (
        select(t.job.c.spec)
        .where(t.job.c.id == job_id, t.job.c.state == "validating")
        .with_for_update()
    )
    spec: Mapping[str, Any] | None = (await connection.execute(query)).scalar_one_or_none()
    return spec


async def queue(
    connection: AsyncConnection,
    job_id: str,
    lists: Mapping[str, Mapping[str, Any]],
    spec: Mapping[str, Any],
) -> None:
    """Give the job its task lists and the last of its spec, and queue it; a cancelled one stays so."""
    changed = await connection.execute(
        update(t.job)
        .where(t.job.c.id == job_id, t.job.c.state == "validating")
        .values(
            tasks={name: dict(one) for name, one in lists.items()}, spec=dict(spec), state="queued"
        )
    )
    if changed.rowcount == 1:
        await events.append(connection, job_id, "job.state", {"state": "queued", "reason": ""})


@dataclass(frozen=True, slots=True)
class DueOperation:
    """An operation that a worker is woken for."""

    operation_id: str
    kind: str


async def due_operations(
    connection: AsyncConnection, again_after_s: float, running_max_s: float
) -> list[DueOperation]:
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
        .returning(operation.c.id, operation.c.kind)
    )
    return sorted(
        (DueOperation(row.id, row.kind) for row in result), key=lambda one: one.operation_id
    )


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
