"""What chores and hosts read and write of models and datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import select, text, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, OrganizationId
from infra.names import IMPORT_MODEL, VALIDATE_DATASET
from stores import tables as t
from stores.asset_tables import dataset, dataset_version, model

version = dataset_version

CHECKPOINT_PREFIX: Final = "ckpt_"
"""A base with this prefix is a checkpoint, used as a model."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a model or a split of a dataset."""

    name: str
    uri: str
    sha: str
    size: int


@dataclass(frozen=True, slots=True)
class UnreadModel:
    """A model in state `validating`."""

    id: str
    organization_id: OrganizationId
    project_id: str
    source: Mapping[str, Any]
    files: tuple[StoredFile, ...]


async def unread_model(connection: AsyncConnection, model_id: str) -> UnreadModel | None:
    """The model, if it is still to be looked at."""
    query = select(model).where(
        model.c.id == model_id, model.c.state == "validating", model.c.deleted_at.is_(None)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return None
    owner = OrganizationId(row.organization_id)
    return UnreadModel(row.id, owner, row.project_id, row.source, _files(row.files))


async def model_ready(
    connection: AsyncConnection,
    found: UnreadModel,
    *,
    files: Sequence[StoredFile],
    source: Mapping[str, Any],
    context_tokens: int,
    parameters: int,
) -> None:
    """The model can be used; the first outcome wins."""
    listed = [{"name": f.name, "uri": f.uri, "sha": f.sha, "size": f.size} for f in files]
    await connection.execute(
        update(model)
        .where(model.c.id == found.id, model.c.state == "validating")
        .values(
            state="ready",
            files=listed,
            source=dict(source),
            context_tokens=context_tokens,
            parameters=parameters,
        )
    )


async def model_failed(
    connection: AsyncConnection, model_id: str, findings: Sequence[Mapping[str, str]]
) -> None:
    """The model cannot be used; the first outcome wins."""
    await connection.execute(
        update(model)
        .where(model.c.id == model_id, model.c.state == "validating")
        .values(state="failed", findings=[dict(one) for one in findings])
    )


async def base_files(
    connection: AsyncConnection, attempt_id: AttemptId, base: str
) -> tuple[StoredFile, ...] | None:
    """Files of what an attempt's job names as its base: a checkpoint of its organization, or a ready
    model of its project. None when there is no such thing (any more)."""
    query = (
        select(t.job.c.organization_id, t.job.c.project_id)
        .join(t.attempt, t.attempt.c.job_id == t.job.c.id)
        .where(t.attempt.c.id == attempt_id)
    )
    owner = (await connection.execute(query)).first()
    if owner is None:
        return None
    if base.startswith(CHECKPOINT_PREFIX):
        organization = OrganizationId(owner.organization_id)
        return await checkpoint_files(connection, organization, base)
    files = select(model.c.files).where(
        model.c.project_id == owner.project_id,
        model.c.ref == base,
        model.c.state == "ready",
        model.c.deleted_at.is_(None),
    )
    row = (await connection.execute(files)).first()
    return None if row is None else _files(row.files)


async def checkpoint_files(
    connection: AsyncConnection, organization_id: OrganizationId, checkpoint_id: str
) -> tuple[StoredFile, ...] | None:
    """Files of a ready checkpoint of the organization; None when there is none."""
    query = select(t.checkpoint.c.files).where(
        t.checkpoint.c.id == checkpoint_id,
        t.checkpoint.c.organization_id == organization_id,
        t.checkpoint.c.state == "ready",
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _files(row.files)


def _files(listed: Sequence[Mapping[str, Any]]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(f["name"], f["uri"], f["sha"], int(f["size"])) for f in listed)


async def dataset_splits(
    connection: AsyncConnection, version_id: str
) -> tuple[StoredFile, ...] | None:
    """Splits of a dataset version that is still to be looked at, by name."""
    query = select(version.c.files).where(
        version.c.id == version_id, version.c.state == "validating"
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _splits(row)


async def ready_splits(
    connection: AsyncConnection, project_id: str, name: str, number: int
) -> tuple[StoredFile, ...] | None:
    """Splits of a ready version of a project's dataset."""
    query = (
        select(version.c.files)
        .join(dataset, dataset.c.id == version.c.dataset_id)
        .where(
            dataset.c.project_id == project_id,
            dataset.c.name == name,
            dataset.c.deleted_at.is_(None),
            version.c.version == number,
            version.c.state == "ready",
        )
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _splits(row)


def _splits(row: Row[Any]) -> tuple[StoredFile, ...]:
    return tuple(
        StoredFile(split, one["uri"], one["sha"], int(one["size"]))
        for split, one in sorted(row.files.items())
    )


@dataclass(frozen=True, slots=True)
class DatasetOutcome:
    """What validation found; `unlisted` counts findings beyond those listed, by code."""

    passed: bool
    findings: Sequence[Mapping[str, str]]
    unlisted: Mapping[str, int]
    rows: Mapping[str, int]


async def write_dataset(
    connection: AsyncConnection, version_id: str, outcome: DatasetOutcome
) -> None:
    """The version is ready or failed; the first outcome wins."""
    query = select(version.c.files).where(version.c.id == version_id).with_for_update()
    files = (await connection.execute(query)).scalar_one()
    counted = {split: {**one, "rows": outcome.rows.get(split)} for split, one in files.items()}
    await connection.execute(
        update(version)
        .where(version.c.id == version_id, version.c.state == "validating")
        .values(
            state="ready" if outcome.passed else "failed",
            findings=[dict(one) for one in outcome.findings],
            unlisted=dict(outcome.unlisted),
            files=counted,
        )
    )


async def settle_failed(connection: AsyncConnection) -> None:
    """Models and versions whose operation failed must not stay in `validating`."""
    for table, kind, field in (
        ("model", IMPORT_MODEL, "model_id"),
        ("dataset_version", VALIDATE_DATASET, "dataset_version_id"),
    ):
        await connection.execute(
            text(
                f"update {table} v set state = 'failed', findings = jsonb_build_array("
                " jsonb_build_object('pointer', '', 'code', o.error->>'code',"
                " 'message', o.error->>'detail', 'hint', '', 'severity', 'error'))"
                " from operation o where o.kind = :kind and o.state = 'failed'"
                f" and v.state = 'validating' and v.id = o.request->>'{field}'"
            ),
            {"kind": kind},
        )
