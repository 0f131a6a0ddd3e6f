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
    WeightKind,
    WeightRef,
)
from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra.failpoints import hit
from infra.logging import get_logger
from kv.rules import RANKED, KvRules
from workers.models.folder import ModelFolder, load_weights, tied_state, weights_sha
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.handover import arriving, layout_of, leaving
from workers.rollout.embedded.key_stats import key_stats
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import PackedModel, pack
from workers.rollout.embedded.pages.nodes import pages_for
from workers.rollout.embedded.probe import compare
from workers.rollout.embedded.shelf import Key, LoadedAdapter
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes
from workers.rollout.embedded.weights import load_adapter, read_weights
from workers.rollout.kv_transfer.pages import Content, KvRun
from workers.rollout.kv_transfer.transfer import KvTransfer

CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` waits for the decode step in progress."""

CAPABILITIES: Final = (
    Capability.REPRIORITISE,
    Capability.PAUSE_KEEP,
    Capability.SLOT_PREEMPT,
    Capability.LORA,
)
"""What this engine can do beyond generating, whatever its sizes; with outer tiers also that."""

CONTEXTS_PER_SLOT: Final = 3
"""Full contexts for which an engine has pages if nobody says how many: one runs, two wait for tools."""

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
class Unverified:
    """An update that no probe has confirmed: of the base (None) or of an adapter."""

    key: Key | None
    undo: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of one engine. Its pages are shared by running turns and by those whose tools run."""

    slots: int = 32
    pages: int | None = None
    """None: room for three full contexts a slot."""
    tiers: TierSizes = NO_TIERS
    rules: KvRules = RANKED

    def key_sizes(self, context: int) -> KeySizes:
        """What the engine's keys get, for a model with this context."""
        pages = self.pages or CONTEXTS_PER_SLOT * self.slots * pages_for(context)
        return KeySizes(pages, self.tiers, self.rules)


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
        dtype: torch.dtype = torch.float32,
        clock: Callable[[], float] = time.monotonic,
        transfer: KvTransfer | None = None,
    ) -> None:
        """Load the folder's weights (or `weights`) as policy `version` and start the thread.

        With `transfer` the engine hands pages over to others and takes theirs.

        `dtype`, float32 or bfloat16, is that of weights, keys and values, whatever the file's is.
        """
        assert dtype in (torch.float32, torch.bfloat16)
        self._name = name
        self._transfer = transfer
        self._config = folder.config
        self._device = torch.device(device)
        self._dtype = dtype
        if self._device.type == "cpu":
            torch.set_num_threads(1)
        state = load_weights(weights or folder.weights_path)
        self._epoch = epoch
        self._core = Core(
            pack(folder.config, tied_state(folder.config, state), self._device, dtype),
            folder.vocabulary,
            limits.slots,
            limits.key_sizes(folder.config.max_position_embeddings),
            version=version,
            weights_sha=weights_sha(state),
            clock=clock,
        )
        self._clock = clock
        self._mode = Mode.RUNNING
        self._kv = KvMode.KEEP
        self._unverified: Unverified | None = None
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
            kv_pages=core.keys.table.tree.total,
            kv_tokens=core.keys.table.tree.total * PAGE_TOKENS,
            capabilities=self._capabilities(),
        )

    def stats(self) -> EngineStats:
        """Counters and gauges, read beside the running thread: each is right, not all at once."""
        core, counters, tree = self._core, self._core.counters, self._core.keys.table.tree
        return EngineStats(
            version=core.version,
            weights_sha=core.weights_sha,
            paused=self._mode is not Mode.RUNNING,
            active=core.active,
            waiting=len(core.waiting),
            slots=core.slots,
            kv_pages_used=tree.total - len(tree.free),
            kv_pages=tree.total,
            kv_pages_held=tree.locked,
            retained_rollouts=max(len(tree.trajectories) - core.active, 0),
            steps=counters.steps,
            sampled_tokens=counters.sampled_tokens,
            prefilled_tokens=counters.prefilled_tokens,
            cached_tokens=counters.cached_tokens,
            finished=counters.finished,
            aborted=counters.aborted,
            refused=counters.refused,
            evictions=sum(tree.evicted.copy().values()),
            preemptions=counters.preemptions,
            weight_updates=counters.weight_updates,
            sync_failures=counters.sync_failures,
            busy_s=counters.busy_s,
            kv=key_stats(core.keys, counters.retractions),
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

        pages = await self._look(request)
        if not self._post(lambda: self._submit(request, deliver, None, pages)):
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

        pages = await self._look(request)
        if not self._post(lambda: self._submit(request, deliver, send, pages)):
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

    async def export_kv(self, rollout_id: RolloutId) -> KvTicket:
        """Copy the rollout's whole pages on the device. Raises KvRefused."""
        if self._transfer is None:
            raise KvRefused(KvFailure.UNSUPPORTED, rollout_id)

        def leave() -> tuple[KvRun, Content] | KvRefused:
            try:
                return leaving(self._core, rollout_id)
            except KvRefused as refused:
                return refused

        try:
            left = await self._ask(leave)
        except EngineRefused as closed:
            raise KvRefused(KvFailure.GONE, str(closed)) from closed
        if isinstance(left, KvRefused):
            raise left
        return await asyncio.to_thread(self._transfer.export, *left)

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
            swap = await asyncio.to_thread(self._read, ref)
        except SyncFailed:
            self._core.counters.sync_failures += 1
            raise
        await self._ask(swap)

    async def verify_weights(self, probe: Probe) -> ProbeReport:
        """Compare with the trainer's log-probabilities; a mismatch restores the old weights."""
        return await self._ask(lambda: self._verify(probe))

    async def resume(self) -> None:
        """Decode again; refused while weights are loaded but not verified."""

        def leave() -> None:
            if self._unverified is not None:
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

    def _read(self, ref: WeightRef) -> Callable[[], None]:
        """Read and check beside the thread; what is returned serves it, between two steps."""
        newest = self._core.adapters.shelf.newest((ref.tenant, ref.adapter))
        is_adapter = ref.kind is WeightKind.LORA
        epoch = self._epoch if not is_adapter else ref.epoch if newest is None else newest.epoch
        if ref.epoch < epoch:
            raise SyncFailed(Refusal.OLD_EPOCH, f"epoch {ref.epoch} is older than {epoch}")
        try:
            hit("engine.sync.before_read")
            if is_adapter:
                adapter = load_adapter(ref, self._config, self._device, self._dtype)
            else:
                model = read_weights(ref, self._config, self._device, self._dtype)
            hit("engine.sync.after_read")
        except OSError as error:
            raise SyncFailed(Refusal.UNREADABLE, str(error)) from error
        if is_adapter:
            return lambda: self._swap_adapter(adapter)
        return lambda: self._swap(Served(model, ref.version, ref.sha, ref.epoch))

    def _swap(self, served: Served) -> None:
        core = self._core
        before = Served(core.model, core.version, core.weights_sha, self._epoch)
        self._begin(None, lambda: self._serve(before))
        self._serve(served)

    def _swap_adapter(self, adapter: LoadedAdapter) -> None:
        before = self._core.adapters.shelf.newest(adapter.key)
        self._begin(adapter.key, lambda: self._core.withdraw_adapter(adapter, before))
        self._core.swap_adapter(adapter)

    def _begin(self, key: Key | None, undo: Callable[[], None]) -> None:
        if self._mode is not Mode.PAUSED:
            raise SyncFailed(Refusal.NOT_PAUSED, "the engine was resumed during the update")
        if self._unverified is None:
            self._unverified = Unverified(key, undo)
        elif self._unverified.key != key:
            raise SyncFailed(Refusal.UNVERIFIED, "another update was not probed yet")

    def _verify(self, probe: Probe) -> ProbeReport:
        core, unverified = self._core, self._unverified
        key = None if unverified is None else unverified.key
        adapter = None if key is None else core.adapters.shelf.newest(key)
        try:
            if adapter is None:
                report = compare(core.model, core.version, core.weights_sha, probe)
            else:
                version, sha = adapter.version, adapter.sha
                report = compare(core.model, version, sha, probe, adapter.packed)
        except SyncFailed:
            core.counters.sync_failures += 1
            if unverified is not None:
                unverified.undo()
                self._unverified = None
            raise
        if unverified is not None:
            core.counters.weight_updates += 1
        self._unverified = None
        return report

    def _serve(self, served: Served) -> None:
        self._core.swap_weights(served.model, served.version, served.sha)
        self._epoch = served.epoch

    def _capabilities(self) -> tuple[Capability, ...]:
        tiers = (Capability.TIERS,) if self._core.keys.tiers is not None else ()
        export = () if self._transfer is None else (Capability.KV_EXPORT,)
        return (*CAPABILITIES, *tiers, *export)

    async def _look(self, request: GenRequest) -> Content | None:
        """The checked pages that come with a request; None when there are none that fit."""
        ticket, transfer = request.kv_source, self._transfer
        if ticket is None or transfer is None:
            return None
        layout = layout_of(self._core.keys.arena)
        # Which weights this request is served is known on the engine's thread, and checked there.
        sha, adapter = ticket.weights_sha, ""
        wanted = KvRun(request.rollout_id, request.token_ids, sha, layout, adapter)
        try:
            return await asyncio.to_thread(transfer.look, ticket, wanted)
        except KvRefused:
            return None

    def _take_in(self, request: GenRequest, pages: Content) -> None:
        ticket, transfer = request.kv_source, self._transfer
        assert ticket is not None
        assert transfer is not None
        try:
            tokens = arriving(self._core, request, pages)
        except KvRefused as refused:
            transfer.count_failure("import", refused)
            return
        transfer.note_import(ticket, tokens)

    def _submit(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | EngineRefused], None],
        deliver_chunk: Callable[[TokenChunk], None] | None,
        pages: Content | None = None,
    ) -> None:
        try:
            if self._mode is Mode.CLOSED:
                raise EngineRefused(Refusal.CLOSED, "the engine is closed")
            self._core.submit(request, deliver, deliver_chunk)
        except EngineRefused as refused:
            deliver(refused)
            return
        if pages is not None:
            self._take_in(request, pages)

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
            self._core.close()

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
