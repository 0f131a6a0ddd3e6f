"""Validates a dataset version: every line is a task, nothing occurs twice or leaks between splits."""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from domain.errors import PayloadUnreadable
from infra.codec import convert
from stores.system import assets
from stores.system.assets import DatasetOutcome, StoredFile
from stores.system.operations import TakenOperation
from workers.chores.dataset_rows import check_splits
from workers.chores.handling import ChoreFailed, ChoreTools


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """What the operation's row asks for."""

    dataset_version_id: str


async def validate(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Read all rows and write the version's state, findings and numbers of rows."""
    try:
        request = convert(dict(operation.request), DatasetRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    async with tools.database.begin() as connection:
        splits = await assets.dataset_splits(connection, request.dataset_version_id)
    if splits is None:
        return {"passed": False}
    with tempfile.TemporaryDirectory(prefix="venus-dataset-") as folder:
        paths = await fetch_splits(tools, splits, Path(folder))
        report = await asyncio.to_thread(check_splits, paths)
    outcome = DatasetOutcome(report.passed, report.findings, report.unlisted, report.rows)
    async with tools.database.begin() as connection:
        await assets.write_dataset(connection, request.dataset_version_id, outcome)
    return {"passed": report.passed, "rows": dict(report.rows)}


async def fetch_splits(
    tools: ChoreTools, splits: tuple[StoredFile, ...], folder: Path
) -> dict[str, Path]:
    """The splits as files. Raises ChoreFailed for one that is damaged."""
    try:
        for split in splits:
            await tools.blobs.fetch(split.uri, folder / split.name, split.sha)
    except PayloadUnreadable as error:
        raise ChoreFailed("payload_unreadable", str(error)) from error
    return {split.name: folder / split.name for split in splits}
