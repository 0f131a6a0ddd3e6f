"""Checkpoints: a folder of create-only files whose manifest, written last, is the commit point.

The folder is a model folder (`config.json`, `vocab.json`, `chat.json`, `model.safetensors`) plus
`optimizer.safetensors` and `state.json`, so that a checkpoint loads as a model as it stands.
Without a manifest whose every sha matches, a folder is half-written and never chosen.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load

from domain.errors import PayloadUnreadable
from domain.ids import CheckpointId
from infra.failpoints import hit
from stores.blobs import Blobs, sha256
from stores.system.checkpoints import CheckpointFile
from workers.trainer.step import Learner

MANIFEST: Final = "manifest.json"
MODEL_FILES: Final = ("config.json", "vocab.json", "chat.json")
"""Copied from the model folder that the attempt started from."""

WEIGHTS: Final = "model.safetensors"
OPTIMIZER: Final = "optimizer.safetensors"
STATE: Final = "state.json"

FILE_NAMES: Final = (*MODEL_FILES, WEIGHTS, OPTIMIZER, STATE, MANIFEST)
"""Every name that a checkpoint folder can hold, in order of writing."""

MANIFEST_VERSION: Final = 1

FILE_WRITTEN: Final = "checkpoint.file_written"
"""Failpoint after each file, the manifest not among them; `count=k` picks the k-th."""

MANIFEST_WRITTEN: Final = "checkpoint.manifest_written"
"""Failpoint between the commit point and the row that says `ready`."""


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """A checkpoint that was read and whose every file matches the manifest."""

    checkpoint_id: CheckpointId
    step: int
    weights_sha: str
    files: Mapping[str, bytes]
    listing: tuple[CheckpointFile, ...]


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where the task generator stands: next ordinal, and ordinals issued but not consumed."""

    next_ordinal: int
    unconsumed: tuple[int, ...]


def contents(learner: Learner, position: DataPosition) -> dict[str, bytes]:
    """Files of a checkpoint of the learner as it stands, without manifest, in writing order."""
    folder = learner.folder.path
    return {
        **{name: (folder / name).read_bytes() for name in MODEL_FILES},
        WEIGHTS: learner.weights_file(),
        OPTIMIZER: learner.optimizer_file(),
        STATE: learner.state_file(position.next_ordinal, position.unconsumed),
    }


async def write(
    blobs: Blobs,
    prefix: str,
    files: Mapping[str, bytes],
    *,
    checkpoint_id: CheckpointId,
    step: int,
    weights_sha: str,
) -> None:
    """Create all files, the manifest last. Writing the same checkpoint again is harmless."""
    for name, content in files.items():
        await blobs.create(f"{prefix}/{name}", content)
        hit(FILE_WRITTEN)
    manifest = {
        "version": MANIFEST_VERSION,
        "checkpoint_id": checkpoint_id,
        "step": step,
        "weights_sha": weights_sha,
        "files": [
            {"name": name, "sha256": sha256(content), "size": len(content)}
            for name, content in files.items()
        ],
    }
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    await blobs.create(f"{prefix}/{MANIFEST}", text.encode())
    hit(MANIFEST_WRITTEN)


async def read_whole(blobs: Blobs, manifest_uri: str) -> WholeCheckpoint:
    """Read every file and compare it with the manifest. Raises PayloadUnreadable."""
    prefix = prefix_of(manifest_uri)
    raw = await blobs.read(manifest_uri)
    try:
        manifest = json.loads(raw)
        listed = [(str(f["name"]), str(f["sha256"])) for f in manifest["files"]]
        names = {name for name, _ in listed}
        if not names >= set(FILE_NAMES) - {MANIFEST}:
            raise PayloadUnreadable(f"{manifest_uri} lists too few files")
        files = {name: await blobs.read(f"{prefix}/{name}", sha) for name, sha in listed}
        listing = [*listed, (MANIFEST, sha256(raw))]
        return WholeCheckpoint(
            checkpoint_id=CheckpointId(str(manifest["checkpoint_id"])),
            step=int(manifest["step"]),
            weights_sha=str(manifest["weights_sha"]),
            files=files,
            listing=tuple(
                CheckpointFile(name, f"{prefix}/{name}", sha, len(files.get(name, raw)))
                for name, sha in listing
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise PayloadUnreadable(f"{manifest_uri} is no manifest: {error}") from error


def prefix_of(manifest_uri: str) -> str:
    """Folder of a checkpoint."""
    return manifest_uri.removesuffix(f"/{MANIFEST}")


def restore(learner: Learner, saved: WholeCheckpoint) -> None:
    """Make the learner what it was when the checkpoint was made. Raises PayloadUnreadable."""
    try:
        learner.load_weights(load(saved.files[WEIGHTS]), saved.step)
        learner.load_optimizer(load(saved.files[OPTIMIZER]), saved.files[STATE])
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise PayloadUnreadable(f"{saved.checkpoint_id} does not fit: {error}") from error
    if learner.weights_sha != saved.weights_sha:
        raise PayloadUnreadable(f"{saved.checkpoint_id} holds other weights than it says")


def unpack_model(saved: WholeCheckpoint, folder: Path) -> Path:
    """Write the model folder inside a checkpoint to local disk; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*MODEL_FILES, WEIGHTS):
        (folder / name).write_bytes(saved.files[name])
    return folder


async def delete_files(blobs: Blobs, manifest_uri: str) -> None:
    """Delete a checkpoint's files, the manifest first: from then on it is no checkpoint."""
    prefix = prefix_of(manifest_uri)
    for name in reversed(FILE_NAMES):
        await blobs.delete(f"{prefix}/{name}")
