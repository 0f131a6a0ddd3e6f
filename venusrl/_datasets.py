"""Datasets: tasks as JSON lines, in immutable versions."""

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from venusrl._errors import DatasetInvalid, UploadUnreadable, WaitTimeout
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import Request, Transport, Upload
from venusrl._uploads import multipart
from venusrl.models.datasets import Dataset, DatasetVersion, Preview

DATASETS = "/v1/datasets"

VALIDATION_WAIT_S: Final = 300.0
"""A chore reads every row, on a machine whose cores may all train."""

Splits = Mapping[str, str | os.PathLike[str]] | str | os.PathLike[str]
"""Files by split, or a folder whose `*.jsonl` are named after their splits."""


class AsyncDatasets:
    """`client.datasets`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, name: str) -> Dataset:
        """Reserve a name; `push` does so too."""
        return await read(self._transport, Request("POST", DATASETS, body={"name": name}), Dataset)

    async def push(
        self, name: str, splits: Splits, *, wait_s: float | None = VALIDATION_WAIT_S
    ) -> DatasetVersion:
        """Upload a version and wait until it is ready; the same content is the version that exists.

        Raises DatasetInvalid with findings, UploadUnreadable for files that are not there. A ready
        version may have findings too: rows that occur twice, or in two splits.
        """
        content = await self._transport.aside(_content_of, splits)
        request = Request("POST", f"{DATASETS}/{one(name)}/versions", content=content)
        version = await read(self._transport, request, DatasetVersion)
        return version if wait_s is None else await self.wait(version, wait_s)

    async def wait(
        self, version: DatasetVersion, timeout_s: float = VALIDATION_WAIT_S
    ) -> DatasetVersion:
        """The version once it is ready. Raises DatasetInvalid or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if version.state == "ready":
                return version
            if version.state == "failed":
                raise DatasetInvalid(version.ref, version.findings)
            version = await self.version(version.dataset, version.version)
        raise WaitTimeout(f"dataset {version.ref} is still {version.state}")

    def list(self, newest_first: bool = False) -> AsyncIterator[Dataset]:
        """Datasets of the project."""
        params = {"order": "desc" if newest_first else "asc"}
        return iterate(self._transport, DATASETS, params, Dataset)

    async def get(self, name: str) -> Dataset:
        """One dataset."""
        return await read(self._transport, Request("GET", f"{DATASETS}/{one(name)}"), Dataset)

    def versions(self, name: str, newest_first: bool = False) -> AsyncIterator[DatasetVersion]:
        """Versions of a dataset."""
        params = {"order": "desc" if newest_first else "asc"}
        return iterate(self._transport, f"{DATASETS}/{one(name)}/versions", params, DatasetVersion)

    async def version(self, name: str, number: int) -> DatasetVersion:
        """One version with its state, findings and numbers of rows."""
        path = f"{DATASETS}/{one(name)}/versions/{number}"
        return await read(self._transport, Request("GET", path), DatasetVersion)

    async def preview(
        self, name: str, number: int, split: str = "train", limit: int = 20
    ) -> Preview:
        """The first rows of a split."""
        path = f"{DATASETS}/{one(name)}/versions/{number}/preview"
        request = Request("GET", path, {"split": split, "limit": limit})
        return await read(self._transport, request, Preview)

    async def delete(self, name: str) -> None:
        """Delete a dataset with all its versions; jobs keep the tasks that they took from it."""
        await self._transport.send(Request("DELETE", f"{DATASETS}/{one(name)}"))


def _content_of(splits: Splits) -> Upload:
    if isinstance(splits, Mapping):
        return multipart({}, {split: Path(path) for split, path in splits.items()})
    folder = Path(splits)
    found = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    if not found:
        raise UploadUnreadable(f"{folder} has no file SPLIT.jsonl")
    return multipart({}, found)
