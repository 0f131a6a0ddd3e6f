"""What a job's `model.base` names, as a folder on this machine.

A built-in name is a folder of the tree; `upload:ID`, `hf:ORG/NAME@REV` and `ckpt_...` are files in
the object store, which are copied once for each host, checked against their recorded sums.
"""

import shutil
from pathlib import Path
from typing import Final

from domain.errors import NotFound
from domain.ids import AttemptId
from domain.model_files import DESCRIPTION_FILES, INDEX_FILE, WEIGHTS_FILE, is_model_file
from stores.blobs import Blobs
from stores.system import assets
from stores.unit_of_work import Database, Fence
from workers.models.folder import builtin_names, builtin_path, shards_of, weights_file

MODEL_FILES: Final = (*DESCRIPTION_FILES, WEIGHTS_FILE)
"""Of a folder whose weights are one file, as checkpoints have them."""


async def base_folder(
    database: Database,
    blobs: Blobs,
    attempt_id: AttemptId,
    base: str,
    target: Path,
    *,
    fence: Fence | None = None,
) -> Path:
    """Folder of the base model of an attempt; `target` is made anew for one that is not built in.

    Raises NotFound for a model that is gone, PayloadUnreadable for one that is damaged.
    """
    if base in builtin_names():
        return builtin_path(base)
    async with database.begin(fence) as connection:
        files = await assets.base_files(connection, attempt_id, base)
    if files is None:
        raise NotFound(f"there is no ready model {base!r} in the job's project")
    _make_anew(target)
    await fetch_files(blobs, files, target)
    return target


async def fetch_files(
    blobs: Blobs, files: tuple[assets.StoredFile, ...], target: Path
) -> dict[str, Path]:
    """Copy the files of a model folder; others of a checkpoint stay where they are."""
    found = {}
    for file in files:
        if is_model_file(file.name):
            await blobs.fetch(file.uri, target / file.name, file.sha)
            found[file.name] = target / file.name
    return found


def model_files(folder: Path) -> tuple[str, ...]:
    """Names of the files that a checked model folder consists of; others in it are nobody's."""
    weights = weights_file(folder)
    parts = sorted(shards_of(weights)) if weights.name == INDEX_FILE else []
    return (*DESCRIPTION_FILES, weights.name, *parts)


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
