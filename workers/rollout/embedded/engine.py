"""The embedded engine: torch behind the engine port, in a thread of its own.

The thread owns the `Core`; every other method posts a call that it runs between two decode steps.
    running  -- pause(keep, abort) -->  paused  -- resume -->  running
    running  -- pause(wait) -->  draining  -- last running turn ends -->  paused
While paused, `update_weights` reads and checks a file beside the thread, swaps it in whole, and
`verify_weights` decides: the probe holds, or the weights before the update are back. Run it with
`OMP_WAIT_POLICY=passive`: one thread computes, spinning helpers would only take cores from others.
"""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import torch

from domain.engine import (
    PAGE_TOKENS,
    Capability,
    EngineInfo,
    EngineRefused,
    EngineStats,
    GenRequest,
    GenResult,
    KvMode,
    PauseMode,
    Probe,
    ProbeReport,
    Refusal,
    RequestId,
    SyncFailed,
    TokenChunk,
    WeightRef,
)
from domain.ids import RolloutId
from infra.failpoints import hit
from infra.logging import get_logger
from workers.models.folder import ModelFolder, load_weights, weights_sha
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.forward import PackedModel, pack
from workers.rollout.embedded.probe import compare
from workers.rollout.embedded.weights import read_weights

CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` waits for the decode step in progress."""

CAPABILITIES: Final = (Capability.REPRIORITISE, Capability.PAUSE_KEEP)
"""What this engine can do beyond generating."""

T = TypeVar("T")

log = get_logger()


class Mode(StrEnum):
    """What the thread does between calls."""

    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Served:
    """Weights that can be served again."""

    model: PackedModel
    version: int
    sha: str
    epoch: int


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of one engine. `rows` cache rows, of which `slots` run; the rest keep idle keys."""

    slots: int = 32
    rows: int = 96


class EmbeddedEngine:
    """`workers.rollout.ports.Engine` over torch, on one CPU thread or one GPU."""

    def __init__(
        self,
        name: str,
        folder: ModelFolder,
        limits: EngineLimits = EngineLimits(),
        *,
        device: str = "cpu",
        version: int = 0,
        epoch: int = 0,
        weights: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load the folder's weights (or `weights`) as policy `version` and start the thread."""
        self._name = name
        self._config = folder.config
        self._device = torch.device(device)
        if self._device.type == "cpu":
            torch.set_num_threads(1)
        state = load_weights(weights or folder.weights_path)
        self._epoch = epoch
        self._core = Core(
            pack(folder.config, state, self._device),
            folder.vocabulary,
            limits.slots,
            limits.rows,
            version=version,
            weights_sha=weights_sha(state),
            clock=clock,
        )
        self._clock = clock
        self._mode = Mode.RUNNING
        self._kv = KvMode.KEEP
        self._before_update: Served | None = None
        self._drained: list[Future[None]] = []
        self._inbox: list[Callable[[], object]] = []
        self._is_over = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def info(self) -> EngineInfo:
        """Model, weights in use, sizes and capabilities."""
        core = self._core
        return EngineInfo(
            model=self._name,
            version=core.version,
            weights_sha=core.weights_sha,
            epoch=self._epoch,
            slots=core.slots,
            vocab_size=self._config.vocab_size,
            context_tokens=self._config.max_position_embeddings,
            page_tokens=PAGE_TOKENS,
            kv_pages=self._pages_total(),
            capabilities=CAPABILITIES,
        )

    def stats(self) -> EngineStats:
        """Counters and gauges, read beside the running thread: each is right, not all at once."""
        core, counters = self._core, self._core.counters
        pages = -(-core.rows.kv_length // PAGE_TOKENS)
        return EngineStats(
            version=core.version,
            weights_sha=core.weights_sha,
            paused=self._mode is not Mode.RUNNING,
            active=core.active,
            waiting=len(core.waiting),
            slots=core.slots,
            kv_pages_used=int(pages.sum()),
            kv_pages=self._pages_total(),
            kv_pages_held=int(pages[: core.active].sum()),
            retained_rollouts=len(core.rows.idle),
            steps=counters.steps,
            sampled_tokens=counters.sampled_tokens,
            prefilled_tokens=counters.prefilled_tokens,
            cached_tokens=counters.cached_tokens,
            finished=counters.finished,
            aborted=counters.aborted,
            refused=counters.refused,
            evictions=counters.evictions,
            preemptions=0,
            weight_updates=counters.weight_updates,
            sync_failures=counters.sync_failures,
            busy_s=counters.busy_s,
        )

    def waiting(self) -> tuple[RolloutId, ...]:
        """Rollouts whose turn was accepted and has no slot yet."""
        # Copied in one go: the engine's thread changes the queue meanwhile.
        return tuple(one.request.rollout_id for one in list(self._core.waiting.values()))

    async def generate(self, request: GenRequest) -> GenResult:
        """Generate one turn and return it whole; cancelling the call aborts the request."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[GenResult] = loop.create_future()

        def settle(outcome: GenResult | EngineRefused) -> None:
            if answer.done():
                return
            if isinstance(outcome, EngineRefused):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        def deliver(outcome: GenResult | EngineRefused) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        if not self._post(lambda: self._submit(request, deliver, None)):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        try:
            return await answer
        except asyncio.CancelledError:
            self._post_abort(request.request_id)
            raise

    async def stream(self, request: GenRequest) -> AsyncIterator[TokenChunk]:
        """Generate one turn piece by piece; closing the iterator aborts the request."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[TokenChunk | EngineRefused] = asyncio.Queue()

        def send(piece: TokenChunk | EngineRefused) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def deliver(outcome: GenResult | EngineRefused) -> None:
            if isinstance(outcome, EngineRefused):
                send(outcome)

        if not self._post(lambda: self._submit(request, deliver, send)):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        is_over = False
        try:
            while not is_over:
                piece = await pieces.get()
                if isinstance(piece, EngineRefused):
                    is_over = True
                    raise piece
                is_over = piece.finish is not None
                yield piece
        finally:
            if not is_over:
                self._post_abort(request.request_id)

    def set_rank(self, ranks: Mapping[RolloutId, float]) -> None:
        """Give open requests of these rollouts a new rank at the next decode step."""
        copied = dict(ranks)
        self._post(lambda: self._core.set_rank(copied))

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict the rollout's keys after all others for `ttl_s` seconds."""
        self._post(lambda: self._core.retain(rollout_id, ttl_s))

    def release(self, rollout_id: RolloutId) -> None:
        """Drop the rollout's keys: it will not come back."""
        self._post(lambda: self._core.release(rollout_id))

    async def abort(self, request_ids: Sequence[RequestId]) -> tuple[GenResult, ...]:
        """End these requests now and return what they had sampled."""
        wanted = tuple(request_ids)
        return await self._ask(lambda: self._core.abort(wanted, "aborted"))

    async def pause(self, mode: PauseMode, kv: KvMode = KvMode.KEEP) -> None:
        """Stop decoding at a step boundary; returns when it has stopped."""
        drained: Future[None] = Future()

        def enter() -> None:
            self._kv = kv
            if mode is PauseMode.ABORT:
                self._core.abort(self._core.open_requests(), "paused")
            self._mode = Mode.DRAINING if mode is PauseMode.WAIT else Mode.PAUSED
            self._drained.append(drained)

        await self._ask(enter)
        await asyncio.wrap_future(drained)

    async def update_weights(self, ref: WeightRef) -> None:
        """Load and swap weights while paused; on failure the old ones stay and are served."""
        try:
            if self._mode is not Mode.PAUSED:
                raise SyncFailed(Refusal.NOT_PAUSED, "pause the engine before an update")
            if ref.epoch < self._epoch:
                detail = f"epoch {ref.epoch} is older than {self._epoch}"
                raise SyncFailed(Refusal.OLD_EPOCH, detail)
            model = await asyncio.to_thread(self._read, ref)
        except SyncFailed:
            self._core.counters.sync_failures += 1
            raise
        await self._ask(lambda: self._swap(Served(model, ref.version, ref.sha, ref.epoch)))

    async def verify_weights(self, probe: Probe) -> ProbeReport:
        """Compare with the trainer's log-probabilities; a mismatch restores the old weights."""
        return await self._ask(lambda: self._verify(probe))

    async def resume(self) -> None:
        """Decode again; refused while weights are loaded but not verified."""

        def leave() -> None:
            if self._before_update is not None:
                raise EngineRefused(Refusal.UNVERIFIED, "the new weights were not probed")
            self._core.drop_stale_keys(self._kv)
            self._mode = Mode.RUNNING

        await self._ask(leave)

    async def close(self) -> None:
        """End open requests with `abort` and stop the thread; may be called twice."""

        def stop() -> None:
            self._core.abort(self._core.open_requests(), "closed")
            self._mode = Mode.CLOSED

        self._post(stop)
        await asyncio.to_thread(self._thread.join, CLOSE_TIMEOUT_S)

    def _read(self, ref: WeightRef) -> PackedModel:
        try:
            hit("engine.sync.before_read")
            model = read_weights(ref, self._config, self._device)
            hit("engine.sync.after_read")
        except OSError as error:
            raise SyncFailed(Refusal.UNREADABLE, str(error)) from error
        return model

    def _swap(self, served: Served) -> None:
        core = self._core
        if self._mode is not Mode.PAUSED:
            raise SyncFailed(Refusal.NOT_PAUSED, "the engine was resumed during the update")
        if self._before_update is None:
            self._before_update = Served(core.model, core.version, core.weights_sha, self._epoch)
        self._serve(served)

    def _verify(self, probe: Probe) -> ProbeReport:
        try:
            report = compare(self._core.model, self._core.version, self._core.weights_sha, probe)
        except SyncFailed:
            self._core.counters.sync_failures += 1
            if self._before_update is not None:
                self._serve(self._before_update)
                self._before_update = None
            raise
        if self._before_update is not None:
            self._core.counters.weight_updates += 1
        self._before_update = None
        return report

    def _serve(self, served: Served) -> None:
        self._core.swap_weights(served.model, served.version, served.sha)
        self._epoch = served.epoch

    def _pages_total(self) -> int:
        return self._core.rows.count * -(-self._core.rows.context // PAGE_TOKENS)

    def _submit(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | EngineRefused], None],
        deliver_chunk: Callable[[TokenChunk], None] | None,
    ) -> None:
        try:
            if self._mode is Mode.CLOSED:
                raise EngineRefused(Refusal.CLOSED, "the engine is closed")
            self._core.submit(request, deliver, deliver_chunk)
        except EngineRefused as refused:
            deliver(refused)

    def _post_abort(self, request_id: RequestId) -> None:
        self._post(lambda: self._core.abort((request_id,), "cancelled"))

    async def _ask(self, call: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except EngineRefused as refused:
                answer.set_exception(refused)

        if not self._post(run):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        return await asyncio.wrap_future(answer)

    def _post(self, call: Callable[[], object]) -> bool:
        """Have the thread run `call` between two steps; False when there is no thread any more."""
        with self._wake:
            if self._is_over:
                return False
            self._inbox.append(call)
            self._wake.notify()
        return True

    def _run(self) -> None:
        try:
            while self._mode is not Mode.CLOSED:
                self._turn()
        except Exception as error:
            log.exception("engine.failed", model=self._name)
            self._mode = Mode.CLOSED
            self._core.fail_all(f"{type(error).__name__}: {error}")
            raise
        finally:
            self._refuse_the_rest()

    def _turn(self) -> None:
        deadline_s = self._core.expire()
        with self._wake:
            if not self._inbox and not self._has_work():
                wait_s = deadline_s - self._clock()
                self._wake.wait(None if math.isinf(wait_s) else max(wait_s, 0.0))
            calls, self._inbox = self._inbox, []
        for call in calls:
            call()
        if self._mode is Mode.RUNNING or (self._mode is Mode.DRAINING and self._core.active):
            self._core.step(admitting=self._mode is Mode.RUNNING)
        if self._mode is Mode.DRAINING and not self._core.active:
            self._mode = Mode.PAUSED
        if self._mode is Mode.PAUSED:
            self._settle_drained()

    def _has_work(self) -> bool:
        if self._mode is Mode.RUNNING:
            return bool(self._core.active or self._core.waiting)
        return self._mode is Mode.DRAINING

    def _settle_drained(self) -> None:
        drained, self._drained = self._drained, []
        for future in drained:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _refuse_the_rest(self) -> None:
        with self._wake:
            self._is_over = True
            calls, self._inbox = self._inbox, []
        for call in calls:
            call()
        self._settle_drained()
