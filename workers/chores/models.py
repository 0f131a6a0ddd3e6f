"""Imports a model: from an upload, a checkpoint or a hub revision into files of its own, checked.

A model folder that cannot be used is an outcome with findings; nothing of it is ever executed.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from domain.errors import PayloadUnreadable
from infra.codec import convert
from infra.names import model_path
from stores.system import assets
from stores.system.assets import StoredFile, UnreadModel
from stores.system.operations import TakenOperation
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.models.check import CheckedModel, Finding, ModelInvalid, check_folder
from workers.models.folder import file_checksum
from workers.models.hub import Hub, HubFailed
from workers.models.sources import fetch_files, model_files

HUB_FOLDER = "hub"
"""Of VENUS_HOME, where no other folder is set."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What the operation's row asks for."""

    model_id: str


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A folder, its files as they are stored, and what became known of the source."""

    folder: Path
    files: tuple[StoredFile, ...]
    source: Mapping[str, object]


async def import_model(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Gather the files, check them, and write the model's state."""
    try:
        request = convert(dict(operation.request), ImportRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    async with tools.database.begin() as connection:
        model = await assets.unread_model(connection, request.model_id)
    if model is None:
        return {"passed": False}
    with tempfile.TemporaryDirectory(prefix="venus-model-") as folder:
        try:
            gathered = await _gather(tools, model, Path(folder))
            checked = await asyncio.to_thread(check_folder, gathered.folder)
        except ModelInvalid as error:
            findings = [one.as_json() for one in error.findings]
            async with tools.database.begin() as connection:
                await assets.model_failed(connection, model.id, findings)
            return {"passed": False, "findings": len(findings)}
        except PayloadUnreadable as error:
            raise ChoreFailed("payload_unreadable", str(error)) from error
        files = gathered.files or await _store(tools, model, gathered.folder)
    await _ready(tools, model, files, gathered.source, checked)
    return {"passed": True, "parameters": checked.parameters}


async def _ready(
    tools: ChoreTools,
    model: UnreadModel,
    files: tuple[StoredFile, ...],
    source: Mapping[str, object],
    checked: CheckedModel,
) -> None:
    async with tools.database.begin() as connection:
        await assets.model_ready(
            connection,
            model,
            files=files,
            source=source,
            context_tokens=checked.context_tokens,
            parameters=checked.parameters,
        )


async def _gather(tools: ChoreTools, model: UnreadModel, folder: Path) -> _Gathered:
    source = model.source
    match source["type"]:
        case "upload":
            await fetch_files(tools.blobs, model.files, folder)
            return _Gathered(folder, model.files, source)
        case "checkpoint":
            async with tools.database.begin() as connection:
                files = await assets.checkpoint_files(
                    connection, model.organization_id, source["checkpoint"]
                )
            if files is None:
                message = "The checkpoint is gone."
                raise ModelInvalid([Finding("/source/checkpoint", "not_found", message)])
            await fetch_files(tools.blobs, files, folder)
            return _Gathered(folder, (), source)
        case "hub":
            return await _from_hub(tools, model)
        case other:
            raise ChoreFailed("bad_request", f"no model comes from {other!r}")


async def _from_hub(tools: ChoreTools, model: UnreadModel) -> _Gathered:
    settings, source = tools.settings, model.source
    hub = Hub(
        settings.hub_folder or settings.home / HUB_FOLDER,
        settings.hub_url,
        settings.limits.asset_bytes,
    )
    try:
        folder, commit = await hub.snapshot(source["repo"], source["revision"])
    except HubFailed as error:
        raise ModelInvalid([Finding("/source", error.code, str(error))]) from error
    return _Gathered(folder, (), {**source, "commit": commit})


async def _store(tools: ChoreTools, model: UnreadModel, folder: Path) -> tuple[StoredFile, ...]:
    """Files of the model's own: what they came from may go away."""
    stored = []
    for name in model_files(folder):
        path = folder / name
        sha = await asyncio.to_thread(file_checksum, path)
        blob = await tools.blobs.create_from(model_path(model.id, name), path, sha)
        stored.append(StoredFile(name, blob.uri, sha, blob.size))
    return tuple(stored)
