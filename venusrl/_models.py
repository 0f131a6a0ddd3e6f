"""Models: built in, uploaded from a folder, from a checkpoint or a hub revision."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from venusrl._errors import ModelInvalid, UploadUnreadable, WaitTimeout
from venusrl._lists import iterate, read
from venusrl._paths import reference
from venusrl._transport import Request, Transport, Upload
from venusrl._uploads import multipart
from venusrl.models.models import ModelInfo

MODELS = "/v1/models"

FILES: Final = ("config.json", "vocab.json", "chat.json")
"""A model folder: configuration, vocabulary, chat format, and weights."""

WEIGHTS: Final = "model.safetensors"
INDEX: Final = f"{WEIGHTS}.index.json"
"""Where there is no single file of weights: which of several has which tensor."""

IMPORT_WAIT_S: Final = 300.0
"""A chore copies and checks the files, on a machine whose cores may all train."""


class AsyncModels:
    """`client.models`: what a job can start from."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, newest_first: bool = False) -> AsyncIterator[ModelInfo]:
        """Built-in models, then those of the project."""
        params = {"order": "desc" if newest_first else "asc"}
        return iterate(self._transport, MODELS, params, ModelInfo)

    async def get(self, name: str) -> ModelInfo:
        """One model, by name or id."""
        return await read(self._transport, Request("GET", f"{MODELS}/{reference(name)}"), ModelInfo)

    async def upload(
        self,
        name: str,
        folder: str | os.PathLike[str],
        *,
        wait_s: float | None = IMPORT_WAIT_S,
    ) -> ModelInfo:
        """Upload a model folder and wait until it can be used; with `wait_s=None` it does not wait.

        Raises ModelInvalid with findings, UploadUnreadable for a folder that lacks a file.
        """
        content = await self._transport.aside(_content_of, name, Path(folder))
        return await self._create(Request("POST", MODELS, content=content), wait_s)

    async def from_checkpoint(
        self, name: str, checkpoint_id: str, *, wait_s: float | None = IMPORT_WAIT_S
    ) -> ModelInfo:
        """A model of a checkpoint's weights, with files of its own. Raises ModelInvalid."""
        source = {"type": "checkpoint", "checkpoint": checkpoint_id}
        request = Request("POST", MODELS, body={"name": name, "source": source})
        return await self._create(request, wait_s)

    async def from_hub(
        self,
        name: str,
        repo: str,
        revision: str = "main",
        *,
        wait_s: float | None = IMPORT_WAIT_S,
    ) -> ModelInfo:
        """A model of a hub repository (`ORG/NAME`) at a revision. Raises ModelInvalid."""
        source = {"type": "hub", "repo": repo, "revision": revision}
        request = Request("POST", MODELS, body={"name": name, "source": source})
        return await self._create(request, wait_s)

    async def wait(self, model: ModelInfo, timeout_s: float = IMPORT_WAIT_S) -> ModelInfo:
        """The model once it is ready. Raises ModelInvalid or WaitTimeout."""
        async for _ in self._transport.polls(timeout_s):
            if model.state == "ready":
                return model
            if model.state == "failed":
                raise ModelInvalid(model.name, model.findings)
            model = await self.get(model.id or model.name)
        raise WaitTimeout(f"model {model.name} is still {model.state}")

    async def delete(self, name: str) -> None:
        """Delete a model of the project and its files; Conflict while a job needs it."""
        await self._transport.send(Request("DELETE", f"{MODELS}/{reference(name)}"))

    async def _create(self, request: Request, wait_s: float | None) -> ModelInfo:
        model = await read(self._transport, request, ModelInfo)
        return model if wait_s is None else await self.wait(model, wait_s)


def _content_of(name: str, folder: Path) -> Upload:
    is_sharded = (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file()
    files = [*FILES, *(_sharded(folder / INDEX) if is_sharded else [WEIGHTS])]
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise UploadUnreadable(f"{folder} is no model folder: it lacks {', '.join(missing)}")
    return multipart({"name": name}, {file: folder / file for file in files})


def _sharded(index: Path) -> list[str]:
    """The index and the files beside it that it names."""
    try:
        shards = sorted({str(one) for one in json.loads(index.read_text())["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UploadUnreadable(f"{index} is no index of weights: {error}"[:300]) from error
    outside = [one for one in shards if Path(one).name != one]
    if outside:
        raise UploadUnreadable(f"{index} leads out of its folder: {outside[0][:100]}")
    return [INDEX, *shards]
