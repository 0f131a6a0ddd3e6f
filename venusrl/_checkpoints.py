"""Checkpoints: list, keep, delete, export, download with a checked sha256, a look; operations."""

import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import httpx

from venusrl._errors import (
    ApiError,
    ConnectionFailed,
    CorruptDownload,
    OperationFailed,
    UsageError,
    WaitTimeout,
)
from venusrl._lists import iterate, read
from venusrl._paths import one
from venusrl._transport import TRIED_AGAIN, Request, Transport
from venusrl.models.checkpoints import Bundle, Checkpoint, File, Generated, Operation

CHECKPOINTS = "/v1/checkpoints"

GENERATE_WAIT_S: Final = 60.0
"""A chore loads the model first, on a machine whose cores may all train."""

EXPORT_WAIT_S: Final = 600.0
"""A chore copies all weights once; a large model's take minutes."""

HELD_S: Final = 15.0
"""How long the API may hold an answer open; below the client's own timeout."""

READ_TIMEOUT_S: Final = 60.0
"""Silence of a download before its connection counts as dead."""


class AsyncOperations:
    """`client.operations`: asynchronous verbs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, operation_id: str, *, wait_s: float | None = None) -> Operation:
        """One operation; with `wait_s` the API holds its answer until the operation has ended.

        It holds it for HELD_S at most.
        """
        wait = None if wait_s is None else min(max(0.0, wait_s), HELD_S)
        request = Request("GET", f"/v1/operations/{one(operation_id)}", {"wait": wait})
        return await read(self._transport, request, Operation)

    async def wait(self, operation: Operation, timeout_s: float) -> dict[str, Any]:
        """Its result. Raises OperationFailed or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if operation.state == "done":
                return dict(operation.result or {})
            if operation.state == "failed":
                raise OperationFailed(operation)
            operation = await self.get(operation.id)
        raise WaitTimeout(f"operation {operation.id} is still {operation.state}")


class AsyncCheckpoints:
    """`client.checkpoints`."""

    def __init__(self, transport: Transport, operations: AsyncOperations) -> None:
        self._transport = transport
        self._operations = operations

    def list(
        self,
        job_id: str | None = None,
        newest_first: bool = False,
        *,
        state: str | None = None,
        keep: bool | None = None,
    ) -> AsyncIterator[Checkpoint]:
        """Checkpoints of a job; without one those of the whole project, by state and keep."""
        params: dict[str, Any] = {"order": "desc" if newest_first else "asc"}
        path = CHECKPOINTS if job_id is None else f"/v1/jobs/{one(job_id)}/checkpoints"
        if job_id is None:
            params |= {"state": state, "keep": keep}
        elif state is not None or keep is not None:
            raise UsageError("state and keep choose among the checkpoints of the whole project")
        return iterate(self._transport, path, params, Checkpoint)

    async def get(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint with its files."""
        return await read(
            self._transport, Request("GET", f"{CHECKPOINTS}/{one(checkpoint_id)}"), Checkpoint
        )

    async def update(
        self,
        checkpoint_id: str,
        *,
        keep: bool | None = None,
        ttl_days: int | Literal["never"] | None = None,
        etag: str | None = None,
    ) -> Checkpoint:
        """Keep it or not; let it expire so many days after its creation, or never by age.

        With an `etag` only if it has not changed since.
        """
        body: dict[str, Any] = {} if keep is None else {"keep": keep}
        if ttl_days is not None:
            body["ttl_days"] = None if ttl_days == "never" else ttl_days
        headers = {} if etag is None else {"If-Match": etag}
        path = f"{CHECKPOINTS}/{one(checkpoint_id)}"
        request = Request("PATCH", path, body=body, headers=headers)
        return await read(self._transport, request, Checkpoint)

    async def etag(self, checkpoint_id: str) -> str:
        """What `update` takes to notice a change by somebody else."""
        path = f"{CHECKPOINTS}/{one(checkpoint_id)}"
        response = await self._transport.send(Request("GET", path))
        return str(response.headers.get("ETag", ""))

    async def delete(self, checkpoint_id: str) -> None:
        """Delete it, kept or not; Conflict while an attempt, a job or a model needs it."""
        await self._transport.send(Request("DELETE", f"{CHECKPOINTS}/{one(checkpoint_id)}"))

    async def export(
        self,
        checkpoint_id: str,
        format: Literal["safetensors", "peft"] = "safetensors",
        *,
        timeout_s: float = EXPORT_WAIT_S,
    ) -> Bundle:
        """Make one file of its weights and model description; `fetch_export` downloads it."""
        path = f"{CHECKPOINTS}/{one(checkpoint_id)}/export"
        body = {"format": format}
        request = Request("POST", path, {"wait": min(timeout_s, HELD_S)}, body)
        operation = await read(self._transport, request, Operation)
        return Bundle.model_validate(await self._operations.wait(operation, timeout_s))

    async def fetch_export(self, checkpoint_id: str, folder: str | os.PathLike[str]) -> Path:
        """The exported file into `folder`, checked against its sha256; returns its path.

        It is exported first if it was not. A broken download goes on where it stopped.
        """
        bundle = (await self.get(checkpoint_id)).export
        if bundle is None:
            bundle = await self.export(checkpoint_id)
        target = Path(folder)
        await self._transport.aside(_make_folder, target)
        file = File(name=bundle.name, size=bundle.size, sha256=bundle.sha256)
        await self._download_file(f"{CHECKPOINTS}/{one(checkpoint_id)}/export", file, target)
        return target / bundle.name

    async def generate(
        self,
        checkpoint_id: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
        timeout_s: float = GENERATE_WAIT_S,
    ) -> Generated:
        """One answer of the checkpoint's model to a small prompt or conversation, for a look."""
        asked = {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
        body = {
            **asked,
            "tools": list(tools),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        path = f"{CHECKPOINTS}/{one(checkpoint_id)}/generate"
        request = Request("POST", path, {"wait": min(timeout_s, HELD_S)}, body)
        operation = await read(self._transport, request, Operation)
        return Generated.model_validate(await self._operations.wait(operation, timeout_s))

    async def download(self, checkpoint_id: str, folder: str | os.PathLike[str]) -> Path:
        """All files into `folder`, each checked against its recorded sha256; returns the folder.

        A broken download goes on where it stopped. A file appears under its name only when whole.
        """
        target = Path(folder)
        await self._transport.aside(_make_folder, target)
        for file in (await self.get(checkpoint_id)).files:
            _check_name(file.name)
            path = f"{CHECKPOINTS}/{one(checkpoint_id)}/files/{one(file.name)}"
            await self._download_file(path, file, target)
        return target

    async def _download_file(self, request_path: str, file: File, folder: Path) -> None:
        _check_name(file.name)
        part = folder / f"{file.name}.part"
        part.unlink(missing_ok=True)
        patience = self._transport.patience
        for attempt in range(patience.tries):
            try:
                await self._fetch(request_path, part, file.size)
                break
            except (httpx.TransportError, ApiError) as error:
                is_refused = isinstance(error, ApiError) and error.status not in TRIED_AGAIN
                if is_refused:
                    raise
                if attempt + 1 == patience.tries:
                    raise ConnectionFailed(f"{request_path}: {error!r}") from error
                await self._transport.pause(attempt)
        if await self._transport.aside(_sha256, part) != file.sha256:
            part.unlink()
            raise CorruptDownload(f"{file.name} does not have the recorded sha256")
        part.replace(folder / file.name)

    async def _fetch(self, path: str, part: Path, size: int) -> None:
        """Append what is still missing of the file."""
        have = await self._transport.aside(_size_of, part)
        if have == size:
            return
        headers = {"Range": f"bytes={have}-"} if have > 0 else {}
        request = Request("GET", path, headers=headers)
        async with self._transport.stream(request, READ_TIMEOUT_S) as response:
            mode = "ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb"
            with part.open(mode) as out:
                async for chunk in self._transport.chunks(response):
                    out.write(chunk)


def _check_name(name: str) -> None:
    if Path(name).name != name or name in ("", ".", ".."):
        raise CorruptDownload(f"the API names a file {name!r}")


def _make_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def _size_of(path: Path) -> int:
    """Bytes of a file; -1 for none."""
    return path.stat().st_size if path.exists() else -1


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
