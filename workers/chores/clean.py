"""Deletes objects that nothing names any more: of expired checkpoints, old output, deleted jobs.

Of a deleted job go trajectories, payloads, weights of its steps and what its environments printed.
Its rows stay for bills; checkpoints that are kept or used elsewhere stay whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from domain.errors import PayloadUnreadable
from infra.codec import convert
from infra.names import output_folder
from stores.blobs import Blobs
from stores.system import expiry
from stores.system.expiry import Remains
from stores.system.operations import TakenOperation
from workers.chores.handling import ChoreFailed, ChoreTools

FOLDERS: Final = ("trajectories", "groups", "attempts")
"""Of a deleted job; its checkpoints are decided on one by one."""


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """What the operation's row asks for."""

    job_id: str


async def clean(tools: ChoreTools, operation: TakenOperation) -> Mapping[str, object]:
    """Delete what is to go; deleting it again is harmless."""
    try:
        request = convert(dict(operation.request), CleanRequest)
    except msgspec.ValidationError as error:
        raise ChoreFailed("bad_request", str(error)) from error
    async with tools.database.begin() as connection:
        found = await expiry.remains_of(connection, request.job_id)
    try:
        count = await _delete(tools.blobs, request.job_id, found)
    except PayloadUnreadable as error:
        raise ChoreFailed("store_away", str(error)) from error
    async with tools.database.begin() as connection:
        await expiry.cleaned(connection, request.job_id, found)
    return {"objects": count}


async def _delete(blobs: Blobs, job_id: str, found: Remains) -> int:
    paths: dict[str, None] = {}
    for _, files, manifest in found.checkpoints:
        if manifest:
            # The manifest first: from then on it is no checkpoint.
            paths[manifest] = None
            paths |= dict.fromkeys(await blobs.paths(manifest.rpartition("/")[0]))
        paths |= dict.fromkeys(files)
    paths |= dict.fromkeys(uri for _, uri in found.outputs)
    if found.is_deleted:
        for folder in FOLDERS:
            paths |= dict.fromkeys(await blobs.paths(f"jobs/{job_id}/{folder}"))
        for attempt in found.attempts:
            # Also what a node stored and did not live to name.
            paths |= dict.fromkeys(await blobs.paths(output_folder(attempt)))
    for path in paths:
        await blobs.delete(path)
    return len(paths)
