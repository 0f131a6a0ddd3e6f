"""Re-derives a job's chain of weights from what it recorded, with the trainer's own learner."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from domain.ids import AttemptId, CheckpointId, GroupId
from stores.blobs import Blobs
from stores.system import checkpoints as checkpoint_store
from stores.system.training import PayloadRef
from stores.unit_of_work import Database
from tests.support.job_rows import JobRows, Record
from workers.models.folder import read_folder
from workers.models.sources import base_folder
from workers.trainer import checkpoints
from workers.trainer.config import read_spec
from workers.trainer.recovery import read_payload
from workers.trainer.step import Learner


async def replayed(database: Database, blobs: Blobs, rows: JobRows) -> list[str]:
    """Findings: every recorded step whose weights differ from those of the replay."""
    torch.set_num_threads(1)
    findings: list[str] = []
    for attempt in rows.attempts:
        learner = await _start(database, blobs, rows, attempt)
        findings += [line async for line in _steps(blobs, rows.steps_of(attempt), learner)]
    return findings


async def _start(database: Database, blobs: Blobs, rows: JobRows, attempt: Record) -> Learner:
    """The learner that the attempt started from: the base model, or its checkpoint."""
    spec = read_spec(rows.spec)
    with TemporaryDirectory(prefix="venus-replay-") as cache:
        attempt_id = AttemptId(attempt["id"])
        target = Path(cache) / "base"
        path = await base_folder(database, blobs, attempt_id, spec.model.base, target)
        learner = Learner(read_folder(path), spec, torch.device("cpu"))
    if attempt["from_checkpoint_id"] is None:
        return learner
    async with database.begin() as connection:
        row = await checkpoint_store.named(
            connection,
            rows.job["organization_id"],
            CheckpointId(attempt["from_checkpoint_id"]),
        )
    assert row is not None, "the checkpoint of a restart is kept"
    checkpoints.restore(learner, await checkpoints.read_whole(blobs, row.manifest_uri))
    return learner


async def _steps(blobs: Blobs, steps: tuple[Record, ...], learner: Learner) -> AsyncIterator[str]:
    for step in steps:
        if step["step"] != learner.step:
            await _apply(blobs, step, learner)
        if learner.weights_sha != step["weights_sha"]:
            yield f"step {step['step']} re-derives as {learner.weights_sha}: {step['weights_sha']}"


async def _apply(blobs: Blobs, step: Record, learner: Learner) -> None:
    if step["diverged"]:
        learner.skip()
        return
    for ref in _payloads(step):
        learner.add(await read_payload(blobs, ref))
    learner.close(step["learning_rate"])


def _payloads(step: Record) -> Iterator[PayloadRef]:
    """In the order in which backward ran."""
    for payload in step["payloads"]:
        yield PayloadRef(GroupId(payload["group_id"]), payload["uri"], payload["sha"])
