"""The scripted engine: the engine port without a model, for tests of everything around it.

Slots, ranks, guards, aborts, pauses and the order of a weight update behave as the port says; the
tokens come from a `Script`. Everything happens on the caller's event loop, waiting on the given
clock, so that a test holds time in its hand.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from domain.engine import (
    Capability,
    EngineInfo,
    EngineRefused,
    EngineStats,
    Finish,
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
    spans_of,
)
from domain.ids import RolloutId
from domain.kv_ticket import KvFailure, KvRefused, KvTicket
from infra.clock import Clock
from infra.failpoints import hit
from workers.rollout.guards import check
from workers.rollout.kv_transfer.pages import KvRun
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.scripted.keys import LAYOUT, ScriptedKeys, content_of
from workers.rollout.scripted.script import Script, ScriptedAnswer

CAPABILITIES: Final = (Capability.REPRIORITISE, Capability.PAUSE_KEEP)
"""As the embedded engine; with a `KvTransfer` it hands its pages over as well."""

EXPORT: Final = Capability.KV_EXPORT


@dataclass(frozen=True, slots=True)
class ScriptedSizes:
    """What `info` says and the guards obey."""

    vocab_size: int
    context_tokens: int
    slots: int = 32
    kv_tokens: int = 0


@dataclass(slots=True)
class Call:
    """One open request."""

    request: GenRequest
    answer: ScriptedAnswer
    rank: int
    arrival: int
    accepted_s: float
    result: asyncio.Future[GenResult]
    task: asyncio.Task[None] | None = None
    started_s: float = 0.0
    version: int = 0
    imported: int = 0
    """Tokens of the prompt whose keys came from another engine."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the engine pretends to serve."""

    version: int
    sha: str
    epoch: int


@dataclass(slots=True)
class Tally:
    """Counters by name of `EngineStats`."""

    steps: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    weight_updates: int = 0
    sync_failures: int = 0
    by_rollout: Counter[RolloutId] = field(default_factory=Counter)


class ScriptedEngine:
    """`workers.rollout.ports.Engine` over a script."""

    def __init__(
        self,
        name: str,
        sizes: ScriptedSizes,
        script: Script,
        clock: Clock,
        *,
        version: int = 0,
        weights_sha: str = "",
        epoch: int = 0,
        transfer: KvTransfer | None = None,
    ) -> None:
        """Start unpaused, serving nothing real under `version` and `weights_sha`."""
        self._transfer = transfer
        self._keys = ScriptedKeys()
        self._name = name
        self._sizes = sizes
        self._script = script
        self._clock = clock
        self._serving = Weights(version, weights_sha, epoch)
        self._before_update: Weights | None = None
        self._tally = Tally()
        self._open: dict[RequestId, Call] = {}
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._drains: list[asyncio.Future[None]] = []
        """Pauses that wait for running turns; settled when a resume comes first."""
        self._is_closed = False
        self.requests: list[GenRequest] = []
        """Every request that was accepted, in order: what a test looks at."""

    def info(self) -> EngineInfo:
        """What the test gave, and the version pretended to be served."""
        return EngineInfo(
            model=self._name,
            version=self._serving.version,
            weights_sha=self._serving.sha,
            epoch=self._serving.epoch,
            slots=self._sizes.slots,
            vocab_size=self._sizes.vocab_size,
            context_tokens=self._sizes.context_tokens,
            page_tokens=16,
            kv_pages=0,
            capabilities=CAPABILITIES if self._transfer is None else (*CAPABILITIES, EXPORT),
            kv_tokens=self._sizes.kv_tokens,
        )

    def stats(self) -> EngineStats:
        """Counters of the script's progress; one step per answer."""
        running = self._running()
        return EngineStats(
            version=self._serving.version,
            weights_sha=self._serving.sha,
            paused=bool(self._drains) or not self._unpaused.is_set(),
            active=len(running),
            waiting=len(self._open) - len(running),
            slots=self._sizes.slots,
            kv_pages_used=0,
            kv_pages=0,
            kv_pages_held=0,
            retained_rollouts=0,
            steps=self._tally.steps,
            sampled_tokens=self._tally.sampled_tokens,
            prefilled_tokens=0,
            cached_tokens=self._tally.cached_tokens,
            finished=self._tally.finished,
            aborted=self._tally.aborted,
            refused=self._tally.refused,
            evictions=0,
            preemptions=0,
            weight_updates=self._tally.weight_updates,
            sync_failures=self._tally.sync_failures,
            busy_s=0.0,
        )

    def waiting(self) -> tuple[RolloutId, ...]:
        """Rollouts whose turn was accepted and has no slot yet."""
        return tuple(c.request.rollout_id for c in self._open.values() if c.task is None)

    async def generate(self, request: GenRequest) -> GenResult:
        """Replay the next answer of this rollout."""
        call = self._accept(request)
        try:
            return await call.result
        except asyncio.CancelledError:
            self._end(call, Finish.ABORT, "cancelled")
            raise

    async def stream(self, request: GenRequest) -> AsyncIterator[TokenChunk]:
        """Replay the next answer as one chunk."""
        result = await self.generate(request)
        yield TokenChunk(
            request.request_id,
            result.token_ids,
            result.logprobs,
            result.version_spans,
            result.finish,
        )

    def set_rank(self, ranks: Mapping[RolloutId, int]) -> None:
        """Re-rank what waits."""
        for call in self._open.values():
            call.rank = ranks.get(call.request.rollout_id, call.rank)

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """There is nothing to keep."""

    def release(self, rollout_id: RolloutId) -> None:
        """Forget the rollout's keys."""
        self._keys.drop(rollout_id)

    async def export_kv(self, rollout_id: RolloutId) -> KvTicket:
        """Hand out what the rollout's finished turns left. Raises KvRefused."""
        if self._transfer is None:
            raise KvRefused(KvFailure.UNSUPPORTED)
        run = self._keys.run(rollout_id)
        return self._transfer.export(run, content_of(run))

    async def abort(self, request_ids: Sequence[RequestId]) -> tuple[GenResult, ...]:
        """End these requests with nothing sampled."""
        calls = [self._open[r] for r in request_ids if r in self._open]
        return tuple(self._end(call, Finish.ABORT, "aborted") for call in calls)

    async def pause(self, mode: PauseMode, kv: KvMode = KvMode.KEEP) -> None:
        """Hold answers back; `wait` lets the running ones out first, unless it is resumed before."""
        if mode is PauseMode.ABORT:
            for call in list(self._open.values()):
                self._end(call, Finish.ABORT, "paused")
        if mode is not PauseMode.WAIT or await self._drain():
            self._unpaused.clear()

    async def update_weights(self, ref: WeightRef) -> None:
        """Check what any engine checks of a file, then pretend to serve it."""
        try:
            await self._check_update(ref)
        except SyncFailed:
            self._tally.sync_failures += 1
            raise
        self._before_update = self._before_update or self._serving
        self._serving = Weights(ref.version, ref.sha, ref.epoch)

    async def verify_weights(self, probe: Probe) -> ProbeReport:
        """Pass unless the script or the probe's identity says otherwise."""
        identity = (self._serving.version, self._serving.sha)
        bad = self._serving.version in self._script.mismatched_versions
        if bad or (probe.version, probe.sha) != identity:
            self._tally.sync_failures += 1
            self._serving = self._before_update or self._serving
            self._before_update = None
            raise SyncFailed(Refusal.PROBE_MISMATCH, "the script or the probe's identity says so")
        self._tally.weight_updates += self._before_update is not None
        self._before_update = None
        return ProbeReport(probe.version, 0.0, sum(len(s.logprobs) for s in probe.sequences))

    async def resume(self) -> None:
        """Let answers out again."""
        if self._before_update is not None:
            raise EngineRefused(Refusal.UNVERIFIED, "the new weights were not probed")
        drains, self._drains = self._drains, []
        for resumed in drains:
            resumed.set_result(None)
        self._unpaused.set()
        self._dispatch()

    async def close(self) -> None:
        """End open requests with `abort`."""
        self._is_closed = True
        for call in list(self._open.values()):
            self._end(call, Finish.ABORT, "closed")

    async def _drain(self) -> bool:
        """Start nothing until running turns have ended; False when a resume came first."""
        resumed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drains.append(resumed)
        try:
            while not resumed.done() and (running := self._running()):
                ends: list[asyncio.Future[Any]] = [resumed, *(call.result for call in running)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if resumed in self._drains:
                self._drains.remove(resumed)
            self._dispatch()
            raise
        if resumed.done():
            return False
        self._drains.remove(resumed)
        return True

    async def _check_update(self, ref: WeightRef) -> None:
        if self._unpaused.is_set():
            raise SyncFailed(Refusal.NOT_PAUSED, "pause the engine before an update")
        if ref.epoch < self._serving.epoch:
            raise SyncFailed(Refusal.OLD_EPOCH, f"epoch {ref.epoch} < {self._serving.epoch}")
        if ref.kind is not WeightKind.FILE:
            raise SyncFailed(Refusal.UNSUPPORTED_KIND, f"{ref.kind.value} weights")
        hit("engine.sync.before_read")
        try:
            content = await asyncio.to_thread(Path(ref.uri).read_bytes)
        except OSError as error:
            raise SyncFailed(Refusal.UNREADABLE, str(error)) from error
        if hashlib.sha256(content).hexdigest() != ref.checksum:
            raise SyncFailed(Refusal.CHECKSUM, "not the file that was announced")
        hit("engine.sync.after_read")

    def _accept(self, request: GenRequest) -> Call:
        call_number = self._tally.by_rollout[request.rollout_id]
        if self._script.by_turn:
            call_number = int(request.request_id.rpartition("/")[2])
        answer = self._script.answer(request.rollout_id, call_number)
        try:
            self._check(request, answer)
        except EngineRefused:
            self._tally.refused += 1
            raise
        self._tally.by_rollout[request.rollout_id] += 1
        self.requests.append(request)
        result: asyncio.Future[GenResult] = asyncio.get_running_loop().create_future()
        now = self._clock.monotonic()
        call = Call(request, answer, request.rank, len(self.requests), now, result)
        call.imported = self._import(request)
        self._open[request.request_id] = call
        self._dispatch()
        return call

    def _import(self, request: GenRequest) -> int:
        """Take the pages that came with a request; 0 when they do not fit."""
        ticket, transfer = request.kv_source, self._transfer
        if ticket is None or transfer is None:
            return 0
        beginning = request.token_ids[: ticket.tokens]
        sha, tenant = self._serving.sha, request.tenant
        run = KvRun(request.rollout_id, beginning, sha, LAYOUT, tenant=tenant)
        try:
            content = transfer.take(ticket, run)
        except KvRefused:
            return 0
        assert (content == content_of(run)).all(), "checked pages are those of these ids"
        return ticket.tokens

    def _check(self, request: GenRequest, answer: ScriptedAnswer) -> None:
        if self._is_closed:
            raise EngineRefused(Refusal.CLOSED, "the engine is closed")
        if answer.refusal is not None:
            self._tally.by_rollout[request.rollout_id] += 1
            raise EngineRefused(answer.refusal, "the script says so")
        check(request, self._sizes.vocab_size, self._sizes.context_tokens)
        if request.adapter is not None:
            raise EngineRefused(Refusal.UNKNOWN_ADAPTER, f"{request.adapter.name!r} is not loaded")
        if request.request_id in self._open:
            raise EngineRefused(Refusal.DUPLICATE_REQUEST, f"{request.request_id} is open")

    def _running(self) -> list[Call]:
        return [call for call in self._open.values() if call.task is not None]

    def _dispatch(self) -> None:
        if not self._unpaused.is_set() or self._drains:
            return
        waiting = [call for call in self._open.values() if call.task is None]
        free = self._sizes.slots - len(self._running())
        for call in sorted(waiting, key=lambda c: (c.rank, c.arrival))[:free]:
            wanted = call.request.weights_sha
            if wanted is not None and wanted != self._serving.sha:
                self._tally.refused += 1
                del self._open[call.request.request_id]
                refused = EngineRefused(Refusal.WEIGHTS_MISMATCH, f"{wanted} is not served")
                call.result.set_exception(refused)
                continue
            call.started_s = self._clock.monotonic()
            call.version = self._serving.version
            call.task = asyncio.create_task(self._play(call))

    async def _play(self, call: Call) -> None:
        answer, deadline_s = call.answer, call.request.deadline_s
        if deadline_s is not None and answer.delay_s > deadline_s:
            await self._clock.sleep(deadline_s)
            self._end(call, Finish.ABORT, "deadline")
            return
        if answer.delay_s:
            await self._clock.sleep(answer.delay_s)
        await self._unpaused.wait()
        self._end(call, answer.finish, answer.error)

    def _end(self, call: Call, finish: Finish, error: str | None) -> GenResult:
        """Settle a call once; an aborted one has sampled nothing."""
        answer, now = call.answer, self._clock.monotonic()
        is_whole = finish is not Finish.ABORT or answer.finish is Finish.ABORT
        tokens = answer.token_ids if is_whole else ()
        logprobs = (answer.logprobs or (-1.0,) * len(tokens)) if tokens else ()
        versions = (answer.versions or (call.version,) * len(tokens)) if tokens else ()
        result = GenResult(
            request_id=call.request.request_id,
            rollout_id=call.request.rollout_id,
            token_ids=tokens,
            logprobs=logprobs,
            version_spans=spans_of(versions),
            finish=finish,
            weights_sha=self._serving.sha,
            cached_tokens=max(answer.cached_tokens, call.imported),
            queued_s=(call.started_s or now) - call.accepted_s,
            generate_s=now - (call.started_s or now),
            error=error,
        )
        if self._open.pop(call.request.request_id, None) is not None:
            self._settle(call, result)
        return result

    def _settle(self, call: Call, result: GenResult) -> None:
        is_finished = result.finish in (Finish.STOP, Finish.LENGTH)
        if is_finished:
            ids = (*call.request.token_ids, *result.token_ids)
            sha, tenant = result.weights_sha, call.request.tenant
            self._keys.keep(result.rollout_id, ids, sha, tenant)
        else:
            self._keys.drop(result.rollout_id)
        self._tally.finished += is_finished
        self._tally.aborted += not is_finished
        self._tally.steps += 1
        self._tally.sampled_tokens += len(result.token_ids)
        self._tally.cached_tokens += result.cached_tokens
        if call.task is not None and call.task is not asyncio.current_task():
            call.task.cancel()
        if not call.result.done():
            call.result.set_result(result)
        self._dispatch()
