"""Serves the leader's requests for checkpoints: write, read back whole, then the row says `ready`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from domain.events import CheckpointWritten
from domain.ids import CheckpointId
from domain.wire import Checkpoint
from infra.ids import IdSource
from infra.logging import get_logger
from infra.names import checkpoint_prefix
from stores.bill import CHECKPOINT_S
from stores.blobs import Blobs
from stores.system import checkpoints as store
from stores.system.checkpoints import CheckpointRow
from stores.system.training import AttemptOrigin, note_metric
from stores.unit_of_work import Database, HostFence
from workers.trainer.checkpoints import MANIFEST, DataPosition, contents, read_whole, write
from workers.trainer.retention import Retention
from workers.trainer.step import Learner
from workers.trainer.thread import TorchThread


@dataclass(frozen=True, slots=True)
class _Begun:
    """A checkpoint in the making; tried again under the same id when the database went away."""

    row: CheckpointRow
    files: Mapping[str, bytes]


class CheckpointSaver:
    """One request at a time. `emit` tells the leader."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        fence: HostFence,
        *,
        thread: TorchThread,
        ids: IdSource,
        emit: Callable[[object], None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._fence = fence
        self._thread = thread
        self._ids = ids
        self._emit = emit
        self._retention = Retention(database, blobs, fence)
        self._begun: _Begun | None = None

    async def newest_step(self, origin: AttemptOrigin) -> int | None:
        """Step of the attempt's newest checkpoint that is ready."""
        async with self._database.begin(self._fence) as connection:
            rows = await store.of_attempt(connection, origin.attempt_id)
        return max((row.step for row in rows if row.state == "ready"), default=None)

    async def serve(self, origin: AttemptOrigin, learner: Learner, request: Checkpoint) -> bool:
        """Write the checkpoint; a repeated request is answered with what is there.

        False when the learner has moved on: a data position belongs to exactly one step, so the
        leader asks again for the newer one.
        """
        ready = await self._ready(origin, request.step)
        if ready is None and request.step != learner.step:
            get_logger().info("checkpoint.stale_request", step=request.step, at=learner.step)
            return False
        if ready is None:
            ready = await self._save(origin, learner, request)
        self._emit(CheckpointWritten(origin.attempt_id, request.step, ready))
        return True

    async def _ready(self, origin: AttemptOrigin, step: int) -> CheckpointId | None:
        async with self._database.begin(self._fence) as connection:
            rows = await store.of_attempt(connection, origin.attempt_id)
        found = (row.checkpoint_id for row in rows if row.state == "ready" and row.step == step)
        return next(found, None)

    async def _save(
        self, origin: AttemptOrigin, learner: Learner, request: Checkpoint
    ) -> CheckpointId:
        started = time.monotonic()
        if self._begun is None or self._begun.row.step != request.step:
            self._begun = await self._begin(origin, learner, request)
        row, files = self._begun.row, self._begun.files
        async with self._database.begin(self._fence) as connection:
            await store.begin_writing(connection, row)
        await write(
            self._blobs,
            row.manifest_uri.removesuffix(f"/{MANIFEST}"),
            files,
            checkpoint_id=row.checkpoint_id,
            step=row.step,
            weights_sha=row.weights_sha,
        )
        whole = await read_whole(self._blobs, row.manifest_uri)
        async with self._database.begin(self._fence) as connection:
            await store.mark_ready(connection, row, whole.listing)
            spent_s = time.monotonic() - started
            await note_metric(connection, (origin.attempt_id, row.step), CHECKPOINT_S, spent_s)
        self._begun = None
        get_logger().info("checkpoint.ready", checkpoint_id=row.checkpoint_id, step=row.step)
        await self._retention.expire_checkpoints(origin, learner.spec.checkpoints)
        await self._retention.delete_covered_weights(origin)
        return row.checkpoint_id

    async def _begin(self, origin: AttemptOrigin, learner: Learner, request: Checkpoint) -> _Begun:
        position = DataPosition(request.next_ordinal, request.unconsumed)
        files = await self._thread.run(contents, learner, position)
        checkpoint_id = CheckpointId(self._ids.new("ckpt"))
        prefix = checkpoint_prefix(origin.job_id, checkpoint_id, self._fence.epoch)
        row = CheckpointRow(
            checkpoint_id=checkpoint_id,
            job_id=origin.job_id,
            attempt_id=origin.attempt_id,
            organization_id=origin.organization_id,
            step=request.step,
            state="writing",
            reason=request.reason,
            manifest_uri=f"{prefix}/{MANIFEST}",
            weights_sha=learner.weights_sha,
            next_ordinal=request.next_ordinal,
            unconsumed=request.unconsumed,
        )
        return _Begun(row, files)
