"""The embedded engine: torch behind the engine port, in a thread of its own (`thread.py`).

The port is here: turns are posted to the thread, their answers come back to the caller's loop. Weights
are the matter of `updates.py`, pages that come from other engines and go to them of `handover.py`. Run it
with `OMP_WAIT_POLICY=passive`: one thread computes, spinning helpers would only take cores from others.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    TokenChunk,
    WeightRef,
)
from domain.ids import RolloutId
from domain.kv_ticket import KvTicket
from domain.plan import TenantShare
from kv.rules import RANKED, KvRules
from workers.models.folder import ModelFolder, load_weights, tied_state, weights_sha
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.handover import Handover
from workers.rollout.embedded.key_stats import key_stats, retained
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import pack
from workers.rollout.embedded.pages.nodes import pages_for
from workers.rollout.embedded.thread import EngineThread, Mode
from workers.rollout.embedded.tiers.stores import NO_TIERS, TierSizes
from workers.rollout.embedded.updates import Packing, WeightUpdates
from workers.rollout.kv_transfer.pages import Content
from workers.rollout.kv_transfer.transfer import KvTransfer

CAPABILITIES: Final = (
    Capability.REPRIORITISE,
    Capability.PAUSE_KEEP,
    Capability.SLOT_PREEMPT,
    Capability.LORA,
)
"""What this engine can do beyond generating, whatever its sizes; with outer tiers also that."""

CONTEXTS_PER_SLOT: Final = 3
"""Full contexts for which an engine has pages if nobody says how many: one runs, two wait for tools."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of one engine. Its pages are shared by running turns and by those whose tools run."""

    slots: int = 32
    pages: int | None = None
    """None: room for three full contexts a slot."""
    tiers: TierSizes = NO_TIERS
    rules: KvRules = RANKED
    tenants: tuple[TenantShare, ...] = ()
    """Weights by which tenants share the slots; who is not named weighs 1."""

    def key_sizes(self, context: int) -> KeySizes:
        """What the engine's keys get, for a model with this context."""
        pages = self.pages or CONTEXTS_PER_SLOT * self.slots * pages_for(context)
        return KeySizes(pages, self.tiers, self.rules, self.tenants)


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
        self._config = folder.config
        place = torch.device(device)
        if place.type == "cpu":
            torch.set_num_threads(1)
        state = load_weights(weights or folder.weights_path)
        self._core = Core(
            pack(folder.config, tied_state(folder.config, state), place, dtype),
            folder.vocabulary,
            limits.slots,
            limits.key_sizes(folder.config.max_position_embeddings),
            version=version,
            weights_sha=weights_sha(state),
            clock=clock,
        )
        self._thread = EngineThread(name, self._core, clock)
        self._updates = WeightUpdates(self._thread, Packing(folder.config, place, dtype), epoch)
        self._handover = Handover(self._thread, transfer)
        self._thread.start()

    def info(self) -> EngineInfo:
        """Model, weights in use, sizes and capabilities."""
        core = self._core
        return EngineInfo(
            model=self._name,
            version=core.version,
            weights_sha=core.weights_sha,
            epoch=self._updates.epoch,
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
            paused=self._thread.mode is not Mode.RUNNING,
            active=core.active,
            waiting=len(core.waiting),
            slots=core.slots,
            kv_pages_used=tree.total - len(tree.free),
            kv_pages=tree.total,
            kv_pages_held=tree.locked,
            retained_rollouts=retained(core.keys),
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
            engaged_s=counters.engaged_s,
            prefill_s=counters.prefill_s,
            attended_tokens=counters.attended_tokens,
            kv_read_tokens=counters.kv_read_tokens,
        )

    def waiting(self) -> tuple[RolloutId, ...]:
        """Rollouts whose turn was accepted and has no slot yet."""
        # Copied in one go: the engine's thread changes the queue meanwhile.
        return tuple(one.request.rollout_id for one in list(self._core.waiting.values()))

    async def generate(self, request: GenRequest) -> GenResult:
        """Generate one turn and return it whole; cancelling the call aborts the request."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[GenResult] = loop.create_future()

        def settle(outcome: GenResult | Exception) -> None:
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        def deliver(outcome: GenResult | Exception) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        try:
            await self._enter(request, deliver, None)
            return await answer
        except asyncio.CancelledError:
            self._post_abort(request)
            raise
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen, also where the caller leaves before it is told

    async def stream(self, request: GenRequest) -> AsyncIterator[TokenChunk]:
        """Generate one turn piece by piece; closing the iterator aborts the request."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[TokenChunk | Exception] = asyncio.Queue()

        def send(piece: TokenChunk | Exception) -> None:
            with suppress(RuntimeError):  # the reader's loop is closed: nobody waits any more
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def deliver(outcome: GenResult | Exception) -> None:
            if isinstance(outcome, Exception):
                send(outcome)

        is_over = False
        try:
            await self._enter(request, deliver, send)
            while not is_over:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    is_over = True
                    raise piece
                is_over = piece.finish is not None
                yield piece
        finally:
            if not is_over:
                self._post_abort(request)

    def set_rank(self, ranks: Mapping[RolloutId, int]) -> None:
        """Give open requests of these rollouts a new rank at the next decode step."""
        copied = dict(ranks)
        self._thread.post(lambda: self._core.set_rank(copied))

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict the rollout's keys after all others for `ttl_s` seconds."""
        self._thread.post(lambda: self._core.retain(rollout_id, ttl_s))

    def release(self, rollout_id: RolloutId) -> None:
        """Drop the rollout's keys: it will not come back."""
        self._thread.post(lambda: self._core.release(rollout_id))

    async def export_kv(self, rollout_id: RolloutId) -> KvTicket:
        """Copy the rollout's whole pages on the device. Raises KvRefused."""
        return await self._handover.export(rollout_id)

    async def abort(self, request_ids: Sequence[RequestId]) -> tuple[GenResult, ...]:
        """End these requests now and return what they had sampled."""
        wanted = tuple(request_ids)
        return await self._thread.ask(lambda: self._core.abort(wanted, "aborted"))

    async def pause(self, mode: PauseMode, kv: KvMode = KvMode.KEEP) -> None:
        """Stop decoding at a step boundary; returns when it has stopped."""
        await self._thread.pause(mode, kv)

    async def update_weights(self, ref: WeightRef) -> None:
        """Load and swap weights while paused; on failure the old ones stay and are served."""
        await self._updates.update(ref)

    async def verify_weights(self, probe: Probe) -> ProbeReport:
        """Compare with the trainer's log-probabilities; a mismatch restores the old weights."""
        return await self._updates.verify(probe)

    async def resume(self) -> None:
        """Decode again; refused while weights are loaded but not verified."""

        def leave() -> None:
            if not self._updates.is_verified:
                raise EngineRefused(Refusal.UNVERIFIED, "the new weights were not probed")
            self._thread.go_on()

        await self._thread.ask(leave)

    async def close(self) -> None:
        """End open requests with `abort` and stop the thread; may be called twice."""
        await self._thread.close()

    def _capabilities(self) -> tuple[Capability, ...]:
        tiers = (Capability.TIERS,) if self._core.keys.tiers is not None else ()
        export = (Capability.KV_EXPORT,) if self._handover.is_open else ()
        return (*CAPABILITIES, *tiers, *export)

    async def _enter(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | Exception], None],
        deliver_chunk: Callable[[TokenChunk], None] | None,
    ) -> None:
        """Have a request accepted at once; pages that come with it are looked at while it waits."""
        if not self._thread.post(lambda: self._submit(request, deliver, deliver_chunk)):
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        if request.kv_source is None:
            return
        try:
            pages = await self._handover.look(request)
        except Exception:
            self._post_abort(request)
            raise
        self._thread.post(lambda: self._take_in(request, pages, deliver))

    def _submit(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | Exception], None],
        deliver_chunk: Callable[[TokenChunk], None] | None,
    ) -> None:
        try:
            if self._thread.mode is Mode.CLOSED:
                raise EngineRefused(Refusal.CLOSED, "the engine is closed")
            ticket = self._core.submit(request, deliver, deliver_chunk)
        except Exception as error:  # noqa: BLE001 - refused or no request: the caller's matter
            deliver(error)
            return
        ticket.is_expecting = request.kv_source is not None

    def _take_in(
        self,
        request: GenRequest,
        pages: Content | None,
        deliver: Callable[[GenResult | Exception], None],
    ) -> None:
        ticket = self._core.waiting.get(request.request_id)
        if ticket is None or ticket.request is not request:
            return
        try:
            if pages is not None:
                self._handover.take_in(request, pages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
            deliver(error)
            self._core.abort((request.request_id,), "its pages could not be taken in")
            return
        self._core.expected(ticket)

    def _post_abort(self, request: GenRequest) -> None:
        def leave() -> None:
            if self._core.is_open(request):
                self._core.abort((request.request_id,), "cancelled")

        self._thread.post(leave)
