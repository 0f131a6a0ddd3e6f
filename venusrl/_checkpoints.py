"""Checkpoints: list, download with a checked sha256, a look at what they generate; operations."""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from venusrl._errors import (
    ApiError,
    ConnectionFailed,
    CorruptDownload,
    OperationFailed,
    WaitTimeout,
)
from venusrl._lists import iterate, read
from venusrl._transport import TRIED_AGAIN, Request, Transport
from venusrl._waiting import Waiting
from venusrl.models.checkpoints import Checkpoint, File, Generated, Operation

CHECKPOINTS = "/v1/checkpoints"

GENERATE_WAIT_S: Final = 60.0
"""A chore loads the model first, on a machine whose cores may all train."""

HELD_S: Final = 15.0
"""How long the API may hold an answer open; below the client's own timeout."""

READ_TIMEOUT_S: Final = 60.0
"""Silence of a download before its connection counts as dead."""


class Operations:
    """`client.operations`: asynchronous verbs."""

    def __init__(self, transport: Transport, waiting: Waiting) -> None:
        self._transport = transport
        self._waiting = waiting

    def get(self, operation_id: str) -> Operation:
        """One operation."""
        return read(self._transport, Request("GET", f"/v1/operations/{operation_id}"), Operation)

    def wait(self, operation: Operation, timeout_s: float) -> dict[str, Any]:
        """Its result. Raises OperationFailed or WaitTimeout."""
        for _ in self._waiting.until(timeout_s):
            if operation.state == "done":
                return dict(operation.result or {})
            if operation.state == "failed":
                raise OperationFailed(operation)
            operation = self.get(operation.id)
        raise WaitTimeout(f"operation {operation.id} is still {operation.state}")


class Checkpoints:
    """`client.checkpoints`."""

    def __init__(self, transport: Transport, operations: Operations) -> None:
        self._transport = transport
        self._operations = operations

    def list(self, job_id: str, newest_first: bool = False) -> Iterator[Checkpoint]:
        """Checkpoints of a job."""
        params = {"order": "desc" if newest_first else "asc"}
        return iterate(self._transport, f"/v1/jobs/{job_id}/checkpoints", params, Checkpoint)

    def get(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint with its files."""
        return read(self._transport, Request("GET", f"{CHECKPOINTS}/{checkpoint_id}"), Checkpoint)

    def generate(
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
        path = f"{CHECKPOINTS}/{checkpoint_id}/generate"
        request = Request("POST", path, {"wait": min(timeout_s, HELD_S)}, body)
        operation = read(self._transport, request, Operation)
        return Generated.model_validate(self._operations.wait(operation, timeout_s))

    def download(self, checkpoint_id: str, folder: str | os.PathLike[str]) -> Path:
        """All files into `folder`, each checked against its recorded sha256; returns the folder.

        A broken download goes on where it stopped. A file appears under its name only when whole.
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for file in self.get(checkpoint_id).files:
            self._download_file(checkpoint_id, file, target)
        return target

    def _download_file(self, checkpoint_id: str, file: File, folder: Path) -> None:
        if Path(file.name).name != file.name or file.name in ("", ".", ".."):
            raise CorruptDownload(f"the API names a file {file.name!r}")
        part = folder / f"{file.name}.part"
        part.unlink(missing_ok=True)
        request_path = f"{CHECKPOINTS}/{checkpoint_id}/files/{file.name}"
        patience = self._transport.patience
        for attempt in range(patience.tries):
            try:
                self._fetch(request_path, part, file.size)
                break
            except (httpx.TransportError, ApiError) as error:
                is_refused = isinstance(error, ApiError) and error.status not in TRIED_AGAIN
                if is_refused:
                    raise
                if attempt + 1 == patience.tries:
                    raise ConnectionFailed(f"{request_path}: {error!r}") from error
                patience.pause(attempt)
        if _sha256(part) != file.sha256:
            part.unlink()
            raise CorruptDownload(f"{file.name} does not have the recorded sha256")
        part.replace(folder / file.name)

    def _fetch(self, path: str, part: Path, size: int) -> None:
        """Append what is still missing of the file."""
        have = part.stat().st_size if part.exists() else 0
        if have == size and part.exists():
            return
        headers = {"Range": f"bytes={have}-"} if have else {}
        request = Request("GET", path, headers=headers)
        with self._transport.stream(request, READ_TIMEOUT_S) as response:
            mode = "ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb"
            with part.open(mode) as out:
                for chunk in response.iter_bytes():
                    out.write(chunk)


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
