"""From rows and objects back to the learner that the last committed step left behind.

Newest whole checkpoint of the attempt, else the checkpoint that the attempt starts from, else the
base model; then the recorded steps in recorded order, each with its recorded rate, each compared
with its recorded weights sha. No update is lost and no group trains twice: members of the open step
are found by query afterwards.
"""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors.torch import load

from domain.errors import NotFound, PayloadUnreadable, VenusError
from domain.ids import AttemptId, CheckpointId, OrganizationId
from domain.trajectory import GroupPayload
from infra.codec import from_msgpack
from infra.logging import get_logger
from stores.blobs import Blobs
from stores.system import checkpoints as checkpoint_store
from stores.system import training
from stores.system.checkpoints import CheckpointRow
from stores.system.training import AttemptOrigin, PayloadRef, StepRow
from stores.unit_of_work import Database, HostFence
from workers.models.folder import read_folder
from workers.models.sources import base_folder
from workers.trainer import checkpoints
from workers.trainer.batching import NonFinite
from workers.trainer.checkpoints import WholeCheckpoint
from workers.trainer.config import TrainSpec, read_spec
from workers.trainer.publish import Publisher
from workers.trainer.step import Learner
from workers.trainer.thread import TorchThread

CHECKPOINT_PREFIX: Final = "ckpt_"
"""A base model with this prefix is a checkpoint of the same organization, used as a model."""

READ_TRIES: Final = 3
"""Reads of one payload before it counts as lost: a store that hiccups loses nothing."""

READ_PAUSE_S: Final = 0.2
"""Between two such reads."""


class TrainerStops(VenusError):
    """A cause that a new trainer would meet again: the leader is told and the attempt ends."""

    def __init__(self, code: str, cause: str) -> None:
        """Keep the closed code apart from the sentence for people."""
        super().__init__(cause)
        self.code = code


@dataclass(frozen=True, slots=True)
class Restored:
    """The learner at the last committed step, that step's row, and what was passed over."""

    origin: AttemptOrigin
    learner: Learner
    last: StepRow
    skipped: tuple[str, ...]
    replayed: int


async def read_payload(blobs: Blobs, ref: PayloadRef) -> GroupPayload:
    """A group's payload. Raises PayloadUnreadable after READ_TRIES reads."""
    if not ref.uri:
        raise PayloadUnreadable(f"{ref.group_id} has no payload")
    for tries_left in reversed(range(READ_TRIES)):
        try:
            payload = from_msgpack(await blobs.read(ref.uri, ref.sha), GroupPayload)
        except msgspec.MsgspecError as error:
            raise PayloadUnreadable(f"{ref.uri}: {error}") from error
        except PayloadUnreadable:
            if not tries_left:
                raise
            await asyncio.sleep(READ_PAUSE_S)
        else:
            break
    if payload.group_id != ref.group_id:
        raise PayloadUnreadable(f"{ref.uri} is the payload of {payload.group_id}")
    return payload


@dataclass(frozen=True, slots=True)
class Recovery:
    """One host's way back. `cache` is a local folder for models that come from checkpoints."""

    database: Database
    blobs: Blobs
    fence: HostFence
    thread: TorchThread
    device: torch.device
    cache: Path

    async def restore(self, attempt_id: AttemptId) -> Restored:
        """Raises TrainerStops for what a new host would meet again."""
        try:
            return await self._restore(attempt_id)
        except NotFound as error:
            raise TrainerStops("bad_model", str(error)) from error
        except msgspec.ValidationError as error:
            raise TrainerStops("bad_spec", str(error)) from error

    async def _restore(self, attempt_id: AttemptId) -> Restored:
        async with self.database.begin(self.fence) as connection:
            origin = await training.origin(connection, attempt_id)
        spec = read_spec(origin.spec)
        learner = await self.thread.run(
            _build_learner, await self._base_folder(origin, spec), spec, self.device
        )
        skipped = await self._load_start(origin, learner)
        await self._ensure_start_row(origin, learner)
        async with self.database.begin(self.fence) as connection:
            rows = await training.steps_after(connection, attempt_id, learner.step - 1)
        assert rows[0].step == learner.step, "the row of the step that the start belongs to"
        self._compare(learner, rows[0])
        for row in rows[1:]:
            await self._replay(learner, row)
        return Restored(origin, learner, rows[-1], skipped, len(rows) - 1)

    async def _base_folder(self, origin: AttemptOrigin, spec: TrainSpec) -> Path:
        base = spec.model.base
        if not base.startswith(CHECKPOINT_PREFIX):
            return await self._model_folder(origin.attempt_id, base)
        saved = await self._named(origin.organization_id, CheckpointId(base))
        folder = self.cache / f"{base}-{self.fence.host_id}-{self.fence.epoch}"
        shutil.rmtree(folder, ignore_errors=True)
        return checkpoints.unpack_model(saved, folder)

    async def _model_folder(self, attempt_id: AttemptId, base: str) -> Path:
        """A built-in model, or one that the project imported."""
        target = self.cache / f"base-{self.fence.epoch}"
        try:
            return await base_folder(
                self.database, self.blobs, attempt_id, base, target, fence=self.fence
            )
        except PayloadUnreadable as error:
            raise TrainerStops("model_unreadable", str(error)) from error

    async def _named(
        self, organization_id: OrganizationId, checkpoint_id: CheckpointId
    ) -> WholeCheckpoint:
        async with self.database.begin(self.fence) as connection:
            row = await checkpoint_store.named(connection, organization_id, checkpoint_id)
        if row is None:
            raise TrainerStops("checkpoint_missing", f"there is no checkpoint {checkpoint_id}")
        try:
            return await checkpoints.read_whole(self.blobs, row.manifest_uri)
        except PayloadUnreadable as error:
            raise TrainerStops("checkpoint_unreadable", str(error)) from error

    async def _load_start(self, origin: AttemptOrigin, learner: Learner) -> tuple[str, ...]:
        """Load where the attempt can start from; returns notes on what was passed over."""
        async with self.database.begin(self.fence) as connection:
            rows = await checkpoint_store.of_attempt(connection, origin.attempt_id)
        skipped: list[str] = []
        for row in rows:
            note = await self._try_checkpoint(row, learner)
            if note is None:
                return tuple(skipped)
            skipped.append(note)
        if origin.from_checkpoint_id is not None:
            saved = await self._named(origin.organization_id, origin.from_checkpoint_id)
            await self._load(learner, saved)
        learner.step = origin.base_step
        return tuple(skipped)

    async def _try_checkpoint(self, row: CheckpointRow, learner: Learner) -> str | None:
        """Load one checkpoint of this attempt; a note says why it could not be used."""
        try:
            saved = await checkpoints.read_whole(self.blobs, row.manifest_uri)
        except PayloadUnreadable as error:
            note = f"checkpoint {row.checkpoint_id} of step {row.step} skipped: {error}"
            get_logger().warning("checkpoint.skipped", checkpoint_id=row.checkpoint_id, cause=note)
            await self._pass_over(row, str(error))
            return note
        await self._load(learner, saved)
        if row.state == "writing":
            async with self.database.begin(self.fence) as connection:
                await checkpoint_store.mark_ready(connection, row, saved.listing)
        return None

    async def _load(self, learner: Learner, saved: WholeCheckpoint) -> None:
        """A whole checkpoint that does not fit is a defect to be seen, never passed over."""
        try:
            await self.thread.run(checkpoints.restore, learner, saved)
        except PayloadUnreadable as error:
            raise TrainerStops("checkpoint_unreadable", str(error)) from error

    async def _pass_over(self, row: CheckpointRow, cause: str) -> None:
        """Say so; a half-written checkpoint of a dead trainer may never be chosen by anybody."""
        async with self.database.begin(self.fence) as connection:
            await checkpoint_store.note_skipped(connection, row, cause)
        if row.state == "writing":
            await checkpoints.delete_files(self.blobs, row.manifest_uri)

    async def _ensure_start_row(self, origin: AttemptOrigin, learner: Learner) -> None:
        """Publish the policy that the attempt starts from, unless an earlier trainer did."""
        if learner.step != origin.base_step:
            return
        async with self.database.begin(self.fence) as connection:
            if await training.steps_after(connection, origin.attempt_id, learner.step - 1):
                return
        publisher = Publisher(self.blobs, origin.job_id, origin.attempt_id, self.fence.epoch)
        weights = await self.thread.run(learner.weights_file)
        probe = await self.thread.run(learner.probe)
        published = await publisher.write(learner.step, weights, probe)
        row = StepRow(
            job_id=origin.job_id,
            attempt_id=origin.attempt_id,
            step=learner.step,
            epoch=self.fence.epoch,
            payloads=(),
            learning_rate=0.0,
            weights_sha=learner.weights_sha,
            weights_uri=published.weights_uri,
            probe_uri=published.probe_uri,
        )
        async with self.database.begin(self.fence) as connection:
            await training.commit_start(connection, row)

    async def _replay(self, learner: Learner, row: StepRow) -> None:
        """Apply a recorded step: same groups, same order, same rate, same sha."""
        if row.diverged:
            await self.thread.run(learner.skip)
            self._compare(learner, row)
            return
        for ref in row.payloads:
            try:
                await self.thread.run(learner.add, await read_payload(self.blobs, ref))
            except PayloadUnreadable as error:
                raise TrainerStops("replay_payload_lost", f"step {row.step}: {error}") from error
        try:
            await self.thread.run(learner.close, row.learning_rate)
        except NonFinite as error:
            raise TrainerStops("replay_mismatch", f"step {row.step}: {error}") from error
        if learner.weights_sha != row.weights_sha and not learner.is_exact:
            await self._adopt(learner, row)
        self._compare(learner, row)

    async def _adopt(self, learner: Learner, row: StepRow) -> None:
        """An accelerator sums in no fixed order: log it and take the weights as published."""
        get_logger().warning("replay.inexact", step=row.step, weights_sha=learner.weights_sha)
        try:
            weights = load(await self.blobs.read(row.weights_uri))
        except PayloadUnreadable as error:
            raise TrainerStops("replay_mismatch", f"step {row.step}: {error}") from error
        await self.thread.run(learner.load_weights, weights, row.step)

    def _compare(self, learner: Learner, row: StepRow) -> None:
        if learner.weights_sha != row.weights_sha:
            raise TrainerStops(
                "replay_mismatch",
                f"step {row.step} gave weights {learner.weights_sha}, recorded {row.weights_sha}",
            )


def _build_learner(folder: Path, spec: TrainSpec, device: torch.device) -> Learner:
    return Learner(read_folder(folder), spec, device)
