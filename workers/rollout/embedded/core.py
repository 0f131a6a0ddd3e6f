"""The embedded engine without its thread: admit, prefill, decode, finish; weights between steps.

One call of `step` is one decode step: waiting turns take free slots in order of rank, prompts are
prefilled in chunks, then every ready row gets one token. Nothing here waits or knows asyncio;
`engine.py` owns the thread that calls in, one call at a time.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from domain.engine import (
    NAN_LOGITS,
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
    KvMode,
    Refusal,
    RequestId,
    TokenChunk,
    served_sha,
    spans_of,
)
from domain.ids import RolloutId
from workers.models.vocab import Vocabulary
from workers.rollout.embedded.adapters import AdaptedRows, Grouping
from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena, PagedBatch, paged_batch
from workers.rollout.embedded.attention import attention_for
from workers.rollout.embedded.counters import Counters
from workers.rollout.embedded.forward import arena_shape, decode, prefill
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.rows import Idle, Rows, Running, Ticket
from workers.rollout.embedded.sampling import draw_noise, sample
from workers.rollout.embedded.shelf import AdapterShelf, LoadedAdapter
from workers.rollout.guards import check

PREFILL_CHUNK: Final = 128
"""Prompt tokens of one row per engine step: a long prompt never stalls running rows for long."""

PREFILL_TOKENS_MAX: Final = 2048
"""Prompt tokens of all rows per engine step, padding included."""

WAITING_MAX: Final = 4096
"""Waiting requests; more are refused and counted, the caller holds them back."""

RETAINED_MAX: Final = 4096
"""Remembered time limits of `retain`; past it the expired ones are forgotten."""

PAGES_STEP: Final = 2
"""Attended pages are rounded up to it: few distinct shapes, so kernels are planned once."""

STOP_TAIL_TOKENS: Final = 64
"""Newest tokens in which stop strings are looked for; a stop string is far shorter."""


class Core:
    """State of one engine. Every method must be called by the one thread that owns it."""

    def __init__(
        self,
        model: PackedModel,
        vocabulary: Vocabulary,
        slots: int,
        rows: int,
        *,
        version: int,
        weights_sha: str,
        clock: Callable[[], float],
    ) -> None:
        """`rows - slots` is room for keys of rollouts whose tools run at the moment."""
        assert rows >= slots >= 1
        self.model = model
        self.vocabulary = vocabulary
        self.slots = slots
        self.version = version
        self.weights_sha = weights_sha
        self.clock = clock
        self.counters = Counters()
        self.device = model.device
        context = model.config.max_position_embeddings
        pages = -(-context // (PAGE_TOKENS * PAGES_STEP)) * PAGES_STEP
        arena = KvArena(arena_shape(model), rows * pages, self.device)
        tables = np.arange(rows * pages, dtype=np.int64).reshape(rows, pages)
        self.rows = Rows(arena, tables, context, model.config.vocab_size)
        self.attention = attention_for(arena)
        self.shelf = AdapterShelf()
        self._grouping = Grouping()
        self.waiting: dict[RequestId, Ticket] = {}
        self._arrivals = 0
        self._retained_until: dict[RolloutId, float] = {}
        self._released: set[RolloutId] = set()
        self._next_deadline_s = math.inf

    @property
    def active(self) -> int:
        """Turns in engine slots."""
        return len(self.rows.running)

    def submit(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | EngineRefused], None],
        deliver_chunk: Callable[[TokenChunk], None] | None = None,
    ) -> None:
        """Accept a request into the waiting queue, or raise `EngineRefused`."""
        try:
            self._check(request)
        except EngineRefused:
            self.counters.refused += 1
            raise
        self._arrivals += 1
        ticket = Ticket(request, request.rank, self._arrivals, self.clock(), deliver, deliver_chunk)
        ticket.adapter = self.shelf.find(request.tenant, request.adapter)
        self._released.discard(request.rollout_id)
        self.waiting[request.request_id] = ticket
        self._next_deadline_s = min(self._next_deadline_s, ticket.deadline_s)

    def step(self, admitting: bool = True) -> None:
        """Advance every running turn by at most one token."""
        if admitting:
            self._admit()
        if not self.rows.running:
            return
        started = self.clock()
        with torch.inference_mode():
            self._prefill()
            self._decode()
        self.counters.steps += 1
        self.counters.busy_s += self.clock() - started

    def expire(self) -> float:
        """End what is past its deadline; returns the next deadline, infinite if there is none."""
        now = self.clock()
        if now < self._next_deadline_s:
            return self._next_deadline_s
        open_tickets = [*self.waiting.values(), *(r.ticket for r in self.rows.running)]
        late = [t.request.request_id for t in open_tickets if t.deadline_s <= now]
        self.abort(late, "deadline")
        self._next_deadline_s = min(
            (t.deadline_s for t in open_tickets if t.deadline_s > now), default=math.inf
        )
        return self._next_deadline_s

    def abort(self, request_ids: Sequence[RequestId], cause: str) -> tuple[GenResult, ...]:
        """End these requests with what they have sampled; their keys are dropped at once."""
        return self._end_all(request_ids, Finish.ABORT, cause)

    def fail_all(self, cause: str) -> None:
        """End everything with `error`: the engine cannot go on."""
        self._end_all(self.open_requests(), Finish.ERROR, cause)

    def open_requests(self) -> tuple[RequestId, ...]:
        """Ids of running and waiting requests."""
        running = (r.ticket.request.request_id for r in self.rows.running)
        return (*running, *self.waiting)

    def set_rank(self, ranks: Mapping[RolloutId, float]) -> None:
        """Re-rank waiting turns, and idle keys for the choice of what to evict."""
        for ticket in self.waiting.values():
            ticket.rank = ranks.get(ticket.request.rollout_id, ticket.rank)
        for running in self.rows.running:
            ticket = running.ticket
            ticket.rank = ranks.get(ticket.request.rollout_id, ticket.rank)
        for idle in self.rows.idle.values():
            idle.rank = ranks.get(idle.rollout_id, idle.rank)

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict this rollout's keys after all others until the time is over."""
        now = self.clock()
        if len(self._retained_until) >= RETAINED_MAX:
            self._retained_until = {r: t for r, t in self._retained_until.items() if t > now}
        self._retained_until[rollout_id] = now + ttl_s

    def release(self, rollout_id: RolloutId) -> None:
        """Drop the rollout's keys, now or when its running turn ends."""
        self._retained_until.pop(rollout_id, None)
        row = self.rows.idle_row_of(rollout_id)
        if row is not None:
            self.rows.forget(row)
        if any(r.ticket.request.rollout_id == rollout_id for r in self.rows.running):
            self._released.add(rollout_id)

    def swap_weights(self, model: PackedModel, version: int, weights_sha: str) -> None:
        """Serve other weights from the next token on; keys stay where they are."""
        self.model = model
        self.version = version
        self.weights_sha = weights_sha

    def swap_adapter(self, adapter: LoadedAdapter) -> None:
        """Serve this version of an adapter from the next token on, where none was pinned."""
        self.shelf.put(adapter.key, adapter)
        for ticket in (*self.waiting.values(), *(r.ticket for r in self.rows.running)):
            ref, held = ticket.request.adapter, ticket.adapter
            if ref is not None and ref.sha is None and held is not None and held.key == adapter.key:
                ticket.adapter = adapter

    def withdraw_adapter(self, adapter: LoadedAdapter, before: LoadedAdapter | None) -> None:
        """Undo a swap; what waits for the withdrawn version, and for no other, is refused."""
        self.shelf.put(adapter.key, None)
        if before is not None:
            self.swap_adapter(before)
        for ticket in [t for t in self.waiting.values() if t.adapter is adapter]:
            del self.waiting[ticket.request.request_id]
            self.counters.refused += 1
            detail = f"{adapter.key[1]!r} was withdrawn"
            ticket.deliver(EngineRefused(Refusal.UNKNOWN_ADAPTER, detail))

    def served_sha(self, ticket: Ticket) -> str:
        """Identity of the weights that make this turn's tokens now."""
        return served_sha(self.weights_sha, None if ticket.adapter is None else ticket.adapter.sha)

    def drop_stale_keys(self, kv: KvMode) -> None:
        """After an update: forget idle keys of other weights; with `drop`, running ones too."""
        served = {served_sha(self.weights_sha, sha) for sha in (None, *self.shelf.shas())}
        stale = [r for r, idle in self.rows.idle.items() if idle.weights_sha not in served]
        for row in stale:
            self.rows.forget(row)
        if kv is KvMode.KEEP:
            return
        for row, running in enumerate(self.rows.running):
            if running.weights_sha != self.served_sha(running.ticket):
                running.weights_sha = self.served_sha(running.ticket)
                self.rows.kv_length[row] = 0

    def _check(self, request: GenRequest) -> None:
        check(request, self.model.config.vocab_size, self.rows.context)
        self.shelf.find(request.tenant, request.adapter)
        if request.request_id in self.open_requests():
            raise EngineRefused(Refusal.DUPLICATE_REQUEST, f"{request.request_id} is open")
        if len(self.waiting) >= WAITING_MAX:
            raise EngineRefused(Refusal.QUEUE_FULL, f"{WAITING_MAX} requests wait")

    def _admit(self) -> None:
        free = self.slots - self.active
        if not free or not self.waiting:
            return
        best = heapq.nsmallest(free, self.waiting.values(), key=lambda t: (t.rank, t.arrival))
        for ticket in best:
            del self.waiting[ticket.request.request_id]
            wanted, served = ticket.request.weights_sha, self.served_sha(ticket)
            if wanted is not None and wanted != served:
                self.counters.refused += 1
                detail = f"{wanted} was asked for, {served} is served"
                ticket.deliver(EngineRefused(Refusal.WEIGHTS_MISMATCH, detail))
                continue
            self._start(ticket)

    def _start(self, ticket: Ticket) -> None:
        request, rows = ticket.request, self.rows
        token_ids = np.asarray(request.token_ids, dtype=np.int64)
        place = len(rows.running)
        own = rows.idle_row_of(request.rollout_id)
        cached = 0
        served = self.served_sha(ticket)
        if own is not None and rows.idle[own].weights_sha == served:
            cached = min(rows.matching(own, token_ids), len(token_ids) - 1)
        if own is not None:
            rows.swap(own, place)
        elif place in rows.idle:
            self._make_room(place)
        running = Running(ticket, self.clock(), served, cached)
        row = rows.start(running, token_ids, cached)
        count = request.sampling.max_tokens
        noise = draw_noise(request.sampling.seed, count).numpy()
        rows.noise[row, len(token_ids) : len(token_ids) + count] = noise
        self.counters.cached_tokens += cached

    def _make_room(self, place: int) -> None:
        """Empty an idle row: move its keys to a free row, else evict the least useful idle row."""
        rows, now = self.rows, self.clock()
        for row in range(place + 1, rows.count):
            if row not in rows.idle:
                rows.swap(place, row)
                return

        def usefulness(row: int) -> tuple[bool, float, float, int]:
            idle = rows.idle[row]
            is_retained = self._retained_until.get(idle.rollout_id, 0.0) > now
            return is_retained, -idle.rank, idle.last_used_s, row

        victim = min(rows.idle, key=usefulness)
        rows.forget(victim)
        rows.swap(place, victim)
        self.counters.evictions += 1

    def _prefill(self) -> None:
        rows, n = self.rows, self.active
        missing = rows.length[:n] - 1 - rows.kv_length[:n]
        needy = np.flatnonzero(missing > 0)
        if not len(needy):
            return
        chunk = int(min(missing[needy].max(), PREFILL_CHUNK))
        needy = needy[: max(1, PREFILL_TOKENS_MAX // chunk)]
        counts = np.minimum(missing[needy], chunk)
        steps = np.arange(chunk)
        is_real = steps[None] < counts[:, None]
        positions = np.where(is_real, rows.kv_length[needy, None] + steps[None], 0)
        tokens = rows.tokens[needy[:, None], positions]
        batch = self._batch(rows.tables[needy], positions, is_real)
        fed = self._tensor(np.where(is_real, tokens, 0))
        prefill(self.model, self.attention, batch, fed, self._adapted(needy))
        rows.kv_length[needy] += counts
        self.counters.prefilled_tokens += int(counts.sum())

    def _decode(self) -> None:
        rows, n = self.rows, self.active
        kv = rows.kv_length[:n]
        is_ready = kv == rows.length[:n] - 1
        ready = np.flatnonzero(is_ready)
        if not len(ready):
            return
        fed = rows.tokens[np.arange(n), kv]
        batch = self._batch(rows.tables[:n], np.where(is_ready, kv, 0)[:, None], is_ready[:, None])
        adapted = self._adapted(np.arange(n))
        logits = decode(self.model, self.attention, batch, self._tensor(fed), adapted)
        chosen = slice(None) if len(ready) == n else ready
        tokens, logprobs = sample(
            logits[chosen],
            self._tensor(rows.noise[ready, rows.length[ready]]),
            self._tensor(rows.temperature[:n][chosen]),
            self._tensor(rows.top_p[:n][chosen]),
        )
        self._append(ready, tokens.cpu().numpy(), logprobs.float().cpu().numpy())

    def _batch(
        self,
        tables: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        is_real: npt.NDArray[np.bool_],
    ) -> PagedBatch:
        step = PAGE_TOKENS * PAGES_STEP
        pages = -(-(int(positions.max()) + 1) // step) * PAGES_STEP
        return paged_batch(self.rows.arena, tables[:, :pages], positions, is_real)

    def _adapted(self, rows: npt.NDArray[np.int64]) -> tuple[AdaptedRows, ...]:
        """Which of these rows run with which adapter."""
        held = [self.rows.running[row].ticket.adapter for row in rows.tolist()]
        return self._grouping.groups([one and one.packed for one in held], self.device)

    def _versions(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """Policy version of what these rows sample now: their adapter's, else the base's."""
        held = [self.rows.running[row].ticket.adapter for row in rows.tolist()]
        return [self.version if one is None else one.version for one in held]

    def _append(
        self,
        ready: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
    ) -> None:
        rows = self.rows
        # Logits that are not numbers, and infinite ones, show in the log-probability of any token.
        is_broken = np.isnan(logprobs)
        self._store(ready[~is_broken], tokens[~is_broken], logprobs[~is_broken])
        stopped = rows.stops[ready, tokens] & ~is_broken
        for index in np.flatnonzero(rows.has_stop_text[ready]):
            stopped[index] |= self._ends_with_stop(int(ready[index]))
        ended = stopped | is_broken | (rows.length[ready] >= rows.end[ready])
        self._stream()
        for index in np.flatnonzero(ended)[::-1]:
            if is_broken[index]:
                self._finish(int(ready[index]), Finish.ERROR, NAN_LOGITS)
                continue
            finish = Finish.STOP if stopped[index] else Finish.LENGTH
            self._finish(int(ready[index]), finish)

    def _store(
        self,
        ready: npt.NDArray[np.int64],
        tokens: npt.NDArray[np.int64],
        logprobs: npt.NDArray[np.float32],
    ) -> None:
        rows = self.rows
        at = rows.length[ready]
        rows.tokens[ready, at] = tokens
        rows.logprobs[ready, at] = logprobs
        rows.versions[ready, at] = self._versions(ready)
        rows.kv_length[ready] += 1
        rows.length[ready] += 1
        self.counters.sampled_tokens += len(ready)

    def _ends_with_stop(self, row: int) -> bool:
        sampled = self.rows.tokens[row, self.rows.sampled(row)][-STOP_TAIL_TOKENS:]
        text = self.vocabulary.decode(int(t) for t in sampled)
        stops = self.rows.running[row].ticket.request.sampling.stop
        return any(stop in text for stop in stops)

    def _stream(self) -> None:
        for row, running in enumerate(self.rows.running):
            if running.ticket.deliver_chunk is not None:
                self._send_chunk(row, running, None)

    def _send_chunk(self, row: int, running: Running, finish: Finish | None) -> None:
        sink, part = running.ticket.deliver_chunk, self.rows.sampled(row)
        start = part.start + running.streamed
        if sink is None or (start == part.stop and finish is None):
            return
        tokens, logprobs, versions = self._record(row, slice(start, part.stop))
        running.streamed = part.stop - part.start
        request_id = running.ticket.request.request_id
        sink(TokenChunk(request_id, tokens, logprobs, spans_of(versions), finish))

    def _record(
        self, row: int, part: slice
    ) -> tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]:
        rows = self.rows
        return (
            tuple(rows.tokens[row, part].tolist()),
            tuple(rows.logprobs[row, part].tolist()),
            tuple(rows.versions[row, part].tolist()),
        )

    def _end_all(
        self, request_ids: Sequence[RequestId], finish: Finish, cause: str
    ) -> tuple[GenResult, ...]:
        results: list[GenResult] = []
        wanted = set(request_ids)
        for row in reversed(range(self.active)):
            if self.rows.running[row].ticket.request.request_id in wanted:
                results.append(self._finish(row, finish, cause))
        for request_id in [r for r in self.waiting if r in wanted]:
            results.append(self._finish_waiting(request_id, finish, cause))
        return tuple(results)

    def _finish(self, row: int, finish: Finish, error: str | None = None) -> GenResult:
        rows, running = self.rows, self.rows.running[row]
        ticket, now = running.ticket, self.clock()
        request = ticket.request
        self._send_chunk(row, running, finish)
        tokens, logprobs, versions = self._record(row, rows.sampled(row))
        self._keep_keys(rows.stop(row), running, finish)
        result = GenResult(
            request_id=request.request_id,
            rollout_id=request.rollout_id,
            token_ids=tokens,
            logprobs=logprobs,
            version_spans=spans_of(versions),
            finish=finish,
            weights_sha=self.served_sha(ticket),
            cached_tokens=running.cached_tokens,
            queued_s=running.started_s - ticket.accepted_s,
            generate_s=now - running.started_s,
            error=error,
        )
        self._count(finish)
        ticket.deliver(result)
        return result

    def _finish_waiting(self, request_id: RequestId, finish: Finish, error: str) -> GenResult:
        ticket = self.waiting.pop(request_id)
        if ticket.deliver_chunk is not None:
            ticket.deliver_chunk(TokenChunk(request_id, (), (), (), finish))
        result = GenResult(
            request_id=request_id,
            rollout_id=ticket.request.rollout_id,
            token_ids=(),
            logprobs=(),
            version_spans=(),
            finish=finish,
            weights_sha=self.served_sha(ticket),
            queued_s=self.clock() - ticket.accepted_s,
            error=error,
        )
        self._count(finish)
        ticket.deliver(result)
        return result

    def _keep_keys(self, row: int, running: Running, finish: Finish) -> None:
        """Keep a finished turn's keys for the next one; keys of mixed or aborted turns go."""
        rollout_id = running.ticket.request.rollout_id
        is_whole = finish in (Finish.STOP, Finish.LENGTH)
        is_current = running.weights_sha == self.served_sha(running.ticket)
        if not is_whole or not is_current or rollout_id in self._released:
            self._released.discard(rollout_id)
            self.rows.kv_length[row] = 0
            if finish is Finish.ERROR:
                self.rows.clear(row)
            return
        older = self.rows.idle_row_of(rollout_id)
        if older is not None:
            self.rows.forget(older)
        self.rows.idle[row] = Idle(
            rollout_id, running.weights_sha, running.ticket.rank, self.clock()
        )

    def _count(self, finish: Finish) -> None:
        if finish in (Finish.STOP, Finish.LENGTH):
            self.counters.finished += 1
        else:
            self.counters.aborted += 1

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
