"""The trainer's host: recovers, announces itself, then fills steps and serves checkpoints.

    leader --Wake, Finish--> look at the rows now      (they also are looked at every POLL_S)
    leader --Checkpoint----> written before the next update
    snapshot (each dial) --> TrainerReady again: whatever frame was lost, the leader catches up

One task acts; frames only leave notes for it. Torch runs in a thread, so the loop keeps answering.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from domain.errors import StoreUnavailable
from domain.events import TrainerFailed, TrainerReady
from domain.ids import AttemptId
from domain.states import HostKind
from domain.wire import Checkpoint, Finish, HostSnapshot, Wake
from infra.clock import Clock
from infra.ids import IdSource
from infra.logging import get_logger
from stores.blobs import Blobs
from stores.system import intervals
from stores.unit_of_work import Database, HostFence
from workers.trainer.filling import StepFiller
from workers.trainer.recovery import Recovery, Restored, TrainerStops
from workers.trainer.saving import CheckpointSaver
from workers.trainer.thread import TorchThread

POLL_S: Final = 2.0
"""How late a lost wake-up is noticed."""

CHECKPOINT_GRACE_S: Final = 2.0
"""A due checkpoint must be asked for within it; until then the next update waits, because a
checkpoint's data position belongs to one step and weights are not kept twice."""


@dataclass(frozen=True, slots=True)
class TrainerPorts:
    """What the host works with. `emit` sends to the leader, or drops while none is connected."""

    database: Database
    blobs: Blobs
    thread: TorchThread
    device: torch.device
    cache: Path
    clock: Clock
    ids: IdSource
    emit: Callable[[object], None]
    set_mode: Callable[[str], None]


class TrainerHost:
    """Trains one attempt under one epoch."""

    def __init__(self, fence: HostFence, attempt_id: AttemptId, ports: TrainerPorts) -> None:
        self._fence = fence
        self._attempt_id = attempt_id
        self._ports = ports
        self._wake = asyncio.Event()
        self._requests: list[Checkpoint] = []
        self._is_unannounced = True
        self._is_ready_noted = False
        self._restored: Restored | None = None
        self._filler: StepFiller | None = None
        self._stops: TrainerStops | None = None
        self._checkpoint_step = -1
        self._committed_at = ports.clock.monotonic()
        self._log = get_logger().bind(host_id=fence.host_id, epoch=fence.epoch)
        self._saver = CheckpointSaver(
            ports.database,
            ports.blobs,
            fence,
            thread=ports.thread,
            ids=ports.ids,
            emit=ports.emit,
        )

    def snapshot(self) -> HostSnapshot:
        """What a leader that just connected must know; TrainerReady follows it."""
        self._is_unannounced = True
        self._wake.set()
        return HostSnapshot(
            host_id=self._fence.host_id,
            epoch=self._fence.epoch,
            kind=HostKind.TRAINER,
            attempt_id=self._attempt_id,
            slots=0,
            policy_version=-1 if self._filler is None else self._filler.last.step,
        )

    def on_frame(self, frame: object) -> None:
        """Note one frame of the leader; never waits."""
        match frame:
            case Wake() | Finish():
                self._wake.set()
            case Checkpoint():
                self._requests.append(frame)
                self._wake.set()
            case _:
                self._log.warning("frame.unexpected", kind=type(frame).__name__)

    async def run(self) -> None:
        """Recover, then work for ever. A fence that no longer holds ends it: FencedOut."""
        await self._recover()
        while True:
            self._wake.clear()
            try:
                look_again = await self._work()
            except StoreUnavailable as error:
                self._log.warning("database.away", cause=str(error))
                look_again = False
            except TrainerStops as stops:
                self._stop(stops)
                look_again = True
            if not look_again:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await self._wake.wait()

    async def _recover(self) -> None:
        ports = self._ports
        recovery = Recovery(
            ports.database, ports.blobs, self._fence, ports.thread, ports.device, ports.cache
        )
        ports.set_mode("load")
        while self._restored is None and self._stops is None:
            try:
                self._restored = await recovery.restore(self._attempt_id)
                newest = await self._saver.newest_step(self._restored.origin)
                self._checkpoint_step = -1 if newest is None else newest
            except StoreUnavailable as error:
                self._log.warning("database.away", cause=str(error))
                await ports.clock.sleep(POLL_S)
            except TrainerStops as stops:
                self._stop(stops)
        if self._restored is not None:
            self._begin(self._restored)
        ports.set_mode("train")

    def _begin(self, restored: Restored) -> None:
        self._log.info(
            "trainer.ready",
            step=restored.last.step,
            replayed=restored.replayed,
            skipped=restored.skipped,
        )
        self._committed_at = self._ports.clock.monotonic()
        self._filler = StepFiller(
            restored,
            self._ports.database,
            self._ports.blobs,
            fence=self._fence,
            thread=self._ports.thread,
            emit=self._ports.emit,
        )

    def _stop(self, stops: TrainerStops) -> None:
        self._log.error("trainer.stopped", code=stops.code, cause=str(stops))
        self._stops = stops
        self._ports.emit(TrainerFailed(self._attempt_id, stops.code, str(stops)))

    async def _work(self) -> bool:
        """One look at everything; True when something was done and more may follow."""
        if self._stops is not None or self._filler is None or self._restored is None:
            assert self._stops is not None, "recovery ends with a learner or a reason"
            # Said again until the leader has ended this host: the first may have been lost.
            self._ports.emit(TrainerFailed(self._attempt_id, self._stops.code, str(self._stops)))
            return False
        if not self._is_ready_noted:
            await self._note_ready()
        if self._is_unannounced:
            self._is_unannounced = False
            self._ports.emit(
                TrainerReady(
                    self._attempt_id,
                    self._fence.host_id,
                    self._fence.epoch,
                    self._filler.last.policy,
                )
            )
        await self._serve_requests(self._restored)
        before = self._filler.last.step
        look_again = await self._filler.advance(may_close=not self._awaits_request())
        if self._filler.last.step != before:
            self._committed_at = self._ports.clock.monotonic()
        return look_again

    async def _note_ready(self) -> None:
        """From here on its time is work or waiting for work."""
        async with self._ports.database.begin(self._fence) as connection:
            await intervals.mark_ready(connection, self._fence.host_id, self._fence.epoch)
        self._is_ready_noted = True

    async def _serve_requests(self, restored: Restored) -> None:
        while self._requests:
            request = self._requests[0]
            if await self._saver.serve(restored.origin, restored.learner, request):
                self._checkpoint_step = max(self._checkpoint_step, request.step)
            self._requests.pop(0)

    def _awaits_request(self) -> bool:
        """A checkpoint of the last step is due, and the leader may still be about to ask."""
        assert self._restored is not None
        assert self._filler is not None
        every = self._restored.learner.spec.checkpoints.every_steps
        step = self._filler.last.step
        due = step - step % every if every else 0
        if due <= max(self._checkpoint_step, self._restored.origin.base_step):
            return False
        return self._ports.clock.monotonic() - self._committed_at < CHECKPOINT_GRACE_S
