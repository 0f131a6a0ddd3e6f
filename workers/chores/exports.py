"""Makes a checkpoint's bundle: its weights and model description, without the optimizer, in one file.

The bundle is an uncompressed tar of a model folder, with the same bytes whenever it is made: an
export that is repeated, or that died half way, ends at the same object.
"""

import asyncio
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import msgspec

from domain.errors import ObjectNotWritten, PayloadUnreadable
from domain.ids import CheckpointId
from infra.codec import convert
from infra.names import export_path
from stores.system import checkpoints as store
from stores.system.assets import StoredFile
from stores.system.operations import TakenOperation
from workers.chores.handling import ChoreFailed, ChoreTools
from workers.models.folder import file_checksum
from workers.models.sources import MODEL_FILES, fetch_files

FORMAT: Final = "safetensors"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What the operation's row asks for."""

    checkpoint_id: str
    format: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the checkpoint's row says of its bundle."""

    format: str
    name: str
    uri: str
    sha: str
    size: int


async def export(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Make and store the bundle, or answer with the one that is there."""
    try:
        request = convert(dict(operation.request), ExportRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    checkpoint_id = CheckpointId(request.checkpoint_id)
    async with tools.database.begin() as connection:
        found = await store.exportable(connection, operation.project_id, checkpoint_id)
    if found is None:
        raise ChoreFailed("not_found", f"there is no ready checkpoint {checkpoint_id}")
    if found.export is not None:
        return _result(convert(dict(found.export), Bundle))
    try:
        bundle = await _made(tools, checkpoint_id, found)
    except PayloadUnreadable as error:
        raise ChoreFailed("checkpoint_unreadable", str(error)) from error
    except ObjectNotWritten as error:
        raise ChoreFailed("not_written", str(error)) from error
    async with tools.database.begin() as connection:
        is_named = await store.mark_exported(connection, checkpoint_id, asdict(bundle))
    if not is_named:
        await tools.blobs.delete(bundle.uri)
        raise ChoreFailed("not_found", f"the checkpoint {checkpoint_id} expired meanwhile")
    return _result(bundle)


async def _made(tools: ChoreTools, checkpoint_id: CheckpointId, found: store.Exportable) -> Bundle:
    listed = tuple(StoredFile(one.name, one.uri, one.sha, one.size) for one in found.files)
    missing = sorted(set(MODEL_FILES) - {one.name for one in listed})
    if missing:
        raise PayloadUnreadable(f"the checkpoint lacks {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="venus-export-") as name:
        folder = Path(name)
        files = await fetch_files(tools.blobs, listed, folder)
        target = folder / "bundle.tar"
        await asyncio.to_thread(_pack, files, target, str(checkpoint_id))
        sha = await asyncio.to_thread(file_checksum, target)
        blob = await tools.blobs.create_from(export_path(found.job_id, checkpoint_id), target, sha)
    return Bundle(FORMAT, f"{checkpoint_id}.safetensors.tar", blob.uri, blob.sha, blob.size)


def _pack(files: Mapping[str, Path], target: Path, folder: str) -> None:
    """A tar whose bytes depend on the files alone: fixed order, owners, modes and times."""
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in MODEL_FILES:
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = files[name].stat().st_size, 0o644
            with files[name].open("rb") as content:
                archive.addfile(entry, content)


def _result(bundle: Bundle) -> Mapping[str, object]:
    """What the user is told; where it lies stays inside."""
    return {
        "format": bundle.format,
        "name": bundle.name,
        "size": bundle.size,
        "sha256": bundle.sha,
    }
