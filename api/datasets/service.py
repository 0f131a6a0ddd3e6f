"""Verbs of datasets. Rows are looked at by a chore; a preview reads the first ones."""

import hashlib
import json
import re
from typing import Any, Final

from api.auth.caller import ProjectCaller
from api.gateway import Gateway
from api.problems import Finding, Problem, conflict, invalid, not_found
from api.uploads import Form, Plan
from domain.errors import PayloadUnreadable
from infra.names import VALIDATE_DATASET, dataset_path
from stores import checkpoints, datasets
from stores.datasets import NewDatasetVersion
from stores.environments import Owner
from stores.unit_of_work import AsyncConnection
from venusrl.models.datasets import Dataset, DatasetVersion, Preview, PreviewRow, Split

SPLITS_MAX: Final = 16
"""Of one version; far more than anybody evaluates on."""

SPLIT: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")

PREVIEW_BYTES_MAX: Final = 1 << 20
"""Read for one preview; rows beyond are not shown."""

TEXT_CHARS_MAX: Final = 200
"""Shown of a line that is no row."""


def upload_plan(gateway: Gateway) -> Plan:
    """What an upload of a version may hold."""
    return Plan(SPLIT, SPLITS_MAX, gateway.settings.limits.asset_bytes, what="The dataset")


def dataset_of(row: Any) -> Dataset:
    """Wire form of a dataset row."""
    return Dataset.model_validate(row, from_attributes=True)


def version_of(name: str, row: Any) -> DatasetVersion:
    """Wire form of a version row; where its rows lie stays inside."""
    return DatasetVersion(
        id=row.id,
        dataset=name,
        version=row.version,
        ref=f"{name}@{row.version}",
        content_sha=row.content_sha,
        state=row.state,
        findings=row.findings,
        unlisted=row.unlisted,
        splits={
            split: Split(size=one["size"], sha256=one["sha"], rows=one.get("rows"))
            for split, one in row.files.items()
        },
        created_at=row.created_at,
    )


async def create(
    connection: AsyncConnection, gateway: Gateway, caller: ProjectCaller, name: str
) -> dict[str, Any]:
    """Insert a dataset without versions. Raises 409 when the project has the name."""
    owner, id = Owner(caller.organization_id, caller.project_id), gateway.ids.new("ds")
    row = await datasets.ensure(connection, owner, id, name)
    if row.id != id:
        raise conflict(f"The project has a dataset {name!r} already.", "name_taken")
    return dataset_of(row).model_dump(mode="json")


def content_sha(form: Form) -> str:
    """Identity of the splits' names and bytes."""
    return hashlib.sha256(json.dumps(form.shas, sort_keys=True).encode()).hexdigest()


async def store_upload(gateway: Gateway, version_id: str, form: Form) -> NewDatasetVersion:
    """Write the splits under the new version's id. Raises 422 without any."""
    if not form.files:
        message = "Send one part a split, for instance train and test."
        raise invalid([Finding("", "no_splits", message)])
    files = {}
    for split, one in sorted(form.files.items()):
        blob = await gateway.blobs.create_from(dataset_path(version_id, split), one.path, one.sha)
        files[split] = {"uri": blob.uri, "sha": one.sha, "size": one.size}
    return NewDatasetVersion(version_id, content_sha(form), files)


async def remove(gateway: Gateway, new: NewDatasetVersion) -> None:
    """Delete the objects of a version that was not made."""
    for one in new.files.values():
        await gateway.blobs.delete(str(one["uri"]))


async def add_version(
    connection: AsyncConnection,
    gateway: Gateway,
    caller: ProjectCaller,
    asked: tuple[str, NewDatasetVersion],
) -> dict[str, Any]:
    """Insert the version and the operation that validates it, or find the one of this content."""
    name, new = asked
    owner = Owner(caller.organization_id, caller.project_id)
    row = await datasets.ensure(connection, owner, gateway.ids.new("ds"), name)
    version = await datasets.add_version(connection, row.id, new)
    if version.id == new.id:
        await checkpoints.start_operation(
            connection,
            caller.project_id,
            gateway.ids.new("op"),
            VALIDATE_DATASET,
            {"dataset_version_id": version.id},
        )
    return version_of(name, version).model_dump(mode="json")


async def need(
    connection: AsyncConnection, caller: ProjectCaller, name: str, *, lock: bool = False
) -> Any:
    """The dataset's row. Raises 404."""
    row = await datasets.find(connection, caller.project_id, name, lock=lock)
    if row is None:
        raise not_found("dataset", name, await datasets.names(connection, caller.project_id))
    return row


async def need_version(
    connection: AsyncConnection, caller: ProjectCaller, name: str, number: int
) -> Any:
    """A version's row in any state. Raises 404."""
    row = await datasets.find_version(connection, caller.project_id, name, number)
    if row is None:
        raise not_found("dataset version", f"{name}@{number}")
    return row


async def delete(connection: AsyncConnection, caller: ProjectCaller, name: str) -> list[str]:
    """Delete a dataset; returns the objects of its versions. Jobs keep the tasks that they took."""
    row = await need(connection, caller, name, lock=True)
    job = await datasets.job_using(connection, caller.project_id, name)
    if job is not None:
        raise conflict(f"The job {job} is loading its tasks from this dataset.", "in_use")
    await datasets.delete(connection, row.id)
    return await datasets.files_of(connection, row.id)


async def preview(gateway: Gateway, row: Any, split: str, limit: int) -> Preview:
    """The first rows of a split. Raises 404."""
    file = row.files.get(split)
    if file is None:
        raise not_found("split", split, sorted(row.files))
    wanted = min(int(file["size"]), PREVIEW_BYTES_MAX)
    try:
        data = b""
        if wanted:
            async for chunk in gateway.blobs.stream(file["uri"], (0, wanted)):
                data += chunk
    except PayloadUnreadable as error:
        raise Problem(500, "payload_unreadable", f"The stored rows are damaged: {error}") from error
    lines = data.split(b"\n")
    if wanted < int(file["size"]):
        lines.pop()
    rows = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    is_cut = len(rows) > limit or wanted < int(file["size"])
    return Preview(split=split, rows=[_row(n, line) for n, line in rows[:limit]], is_cut=is_cut)


def _row(number: int, line: bytes) -> PreviewRow:
    try:
        row = json.loads(line.decode("utf-8"))
        json.dumps(row, allow_nan=False).encode("utf-8")
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict):
        return PreviewRow(line=number, row=row)
    return PreviewRow(line=number, text=line.decode("utf-8", "replace")[:TEXT_CHARS_MAX])
