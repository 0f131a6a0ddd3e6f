"""The embedded engine without its thread: admit, prefill, decode, finish; weights between steps.

One call of `step` is one decode step: better waiting turns take slots, prompts are prefilled in chunks,
then every ready row gets one token. Where pages run out the worst turn gives up its slot. Nothing here
waits or knows asyncio; `engine.py` owns the thread that calls in, one call at a time.
"""

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
)
from domain.ids import RolloutId
from kv.retraction import loser
from workers.models.vocab import Vocabulary
from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena, PagedBatch, paged_batch
from workers.rollout.embedded.attention import attention_for
from workers.rollout.embedded.counters import Counters
from workers.rollout.embedded.forward import arena_shape, decode, prefill
from workers.rollout.embedded.keys import Keys, KeySizes
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.pages.nodes import pages_for
from workers.rollout.embedded.pages.tree import EvictReason
from workers.rollout.embedded.rows import Rows
from workers.rollout.embedded.sampling import draw_noise, sample
from workers.rollout.embedded.shelf import LoadedAdapter
from workers.rollout.embedded.turn_adapters import TurnAdapters
from workers.rollout.embedded.turns import Ending, Record, Retractable, Running, Ticket, result_of
from workers.rollout.guards import check

PREFILL_CHUNK: Final = 128
"""Prompt tokens of one row per engine step: a long prompt never stalls running rows for long."""

PREFILL_TOKENS_MAX: Final = 2048
"""Prompt tokens of all rows per engine step, padding included."""

WAITING_MAX: Final = 4096
"""Waiting requests; more are refused and counted, the caller holds them back."""

PAGES_STEP: Final = 2
"""Attended pages are rounded up to it: few distinct shapes, so kernels are planned once."""

STOP_TAIL_TOKENS: Final = 64
"""Newest tokens in which stop strings are looked for; a stop string is far shorter."""

ADMIT_AGAIN_STEPS: Final = 16
"""Steps after which turns that did not fit are looked at again though nothing ended: gaps grow older."""

LOADING_WAIT_S: Final = 0.005
"""Wait for pages on their way when no row can do anything else."""


class Core:
    """State of one engine. Every method must be called by the one thread that owns it."""

    def __init__(
        self,
        model: PackedModel,
        vocabulary: Vocabulary,
        slots: int,
        sizes: KeySizes,
        *,
        version: int,
        weights_sha: str,
        clock: Callable[[], float],
    ) -> None:
        """`sizes.pages` are shared by all turns, those whose tools run among them."""
        assert slots >= 1
        self.model = model
        self.vocabulary = vocabulary
        self.slots = slots
        self.version = version
        self.weights_sha = weights_sha
        self.clock = clock
        self.counters = Counters()
        self.device = model.device
        context = model.config.max_position_embeddings
        table_pages = -(-context // (PAGE_TOKENS * PAGES_STEP)) * PAGES_STEP
        arena = KvArena(arena_shape(model), sizes.pages, self.device)
        self.keys = Keys(arena, sizes, clock)
        vocab_size = model.config.vocab_size
        self.rows = Rows(slots, context, vocab_size, table_pages, arena.null_page)
        self.attention = attention_for(arena)
        self.adapters = TurnAdapters()
        self.waiting: dict[RequestId, Ticket] = {}
        self._arrivals = 0
        self._released: set[RolloutId] = set()
        self._next_deadline_s = math.inf
        self._admit_at_step = 0

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
        ticket.adapter = self.adapters.find(request)
        self._released.discard(request.rollout_id)
        self.waiting[request.request_id] = ticket
        self._next_deadline_s = min(self._next_deadline_s, ticket.deadline_s)
        self._look_again()

    def step(self, admitting: bool = True) -> None:
        """Advance every running turn by at most one token."""
        self._collect()
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
        """End these requests with what they have sampled; what only they computed is free at once."""
        return self._end_all(request_ids, Finish.ABORT, cause)

    def fail_all(self, cause: str) -> None:
        """End everything with `error`: the engine cannot go on."""
        self._end_all(self.open_requests(), Finish.ERROR, cause)

    def close(self) -> None:
        """Give back what the outer tiers hold."""
        if self.keys.tiers is not None:
            self.keys.tiers.close()

    def open_requests(self) -> tuple[RequestId, ...]:
        """Ids of running and waiting requests."""
        running = (r.ticket.request.request_id for r in self.rows.running)
        return (*running, *self.waiting)

    def set_rank(self, ranks: Mapping[RolloutId, float]) -> None:
        """Re-rank turns, and pages for the choice of what to evict."""
        for ticket in (*self.waiting.values(), *(r.ticket for r in self.rows.running)):
            ticket.rank = ranks.get(ticket.request.rollout_id, ticket.rank)
        for rollout_id, rank in ranks.items():
            self.keys.set_rank(rollout_id, rank)
        self._look_again()

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict this rollout's pages after all others until the time is over."""
        self.keys.retain(rollout_id, ttl_s)

    def release(self, rollout_id: RolloutId) -> None:
        """Drop the rollout's pages, now or when its turn ends."""
        parked = (ticket for ticket in self.waiting.values() if ticket.parked is not None)
        started = (*parked, *(running.ticket for running in self.rows.running))
        if any(ticket.request.rollout_id == rollout_id for ticket in started):
            self._released.add(rollout_id)
        else:
            self.keys.release(rollout_id)
            self._look_again()

    def swap_weights(self, model: PackedModel, version: int, weights_sha: str) -> None:
        """Serve other weights from the next token on; keys stay where they are."""
        self.model = model
        self.version = version
        self.weights_sha = weights_sha

    def swap_adapter(self, adapter: LoadedAdapter) -> None:
        """Serve this version of an adapter from the next token on, where none was pinned."""
        self.adapters.swap(adapter, self._tickets())

    def withdraw_adapter(self, adapter: LoadedAdapter, before: LoadedAdapter | None) -> None:
        """Undo a swap; what waits for the withdrawn version, and for no other, is refused."""
        for ticket in self.adapters.withdraw(adapter, before, self._tickets()):
            del self.waiting[ticket.request.request_id]
            self.counters.refused += 1
            detail = f"{adapter.key[1]!r} was withdrawn"
            ticket.deliver(EngineRefused(Refusal.UNKNOWN_ADAPTER, detail))

    def served_sha(self, ticket: Ticket) -> str:
        """Identity of the weights that make this turn's tokens now."""
        return self.adapters.sha(ticket, self.weights_sha)

    def _tickets(self) -> list[Ticket]:
        return [*self.waiting.values(), *(one.ticket for one in self.rows.running)]

    def drop_stale_keys(self, kv: KvMode) -> None:
        """After an update: keys of other weights are found by nobody; with `drop`, all of them go."""
        parked = [t.parked.running for t in self.waiting.values() if t.parked is not None]
        for row in range(self.active):
            self._fill(row)
        shas = self.adapters.shas(self.weights_sha)
        self.keys.renew(self.served_sha, shas, kv, [*self.rows.running, *parked])
        for row in range(self.active):
            self.rows.follow_lease(row)
        for ticket in self.waiting.values():
            ticket.digests = None
        self._look_again()

    def _check(self, request: GenRequest) -> None:
        check(request, self.model.config.vocab_size, self.rows.context)
        self.adapters.find(request)
        if request.request_id in self.open_requests():
            raise EngineRefused(Refusal.DUPLICATE_REQUEST, f"{request.request_id} is open")
        if len(self.waiting) >= WAITING_MAX:
            raise EngineRefused(Refusal.QUEUE_FULL, f"{WAITING_MAX} requests wait")
        pages = pages_for(len(request.token_ids) + request.sampling.max_tokens)
        if pages > self.keys.table.tree.total:
            detail = f"{pages} pages are needed, the engine has {self.keys.table.tree.total}"
            raise EngineRefused(Refusal.CONTEXT_OVERFLOW, detail)

    # -- slots ------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self._admit_at_step = 0

    def _collect(self) -> None:
        """Rows whose pages came, or did not, go on."""
        loading = [row for row, one in enumerate(self.rows.running) if one.is_loading]
        self.keys.collect(LOADING_WAIT_S if 0 < len(loading) == self.active else 0.0)
        for row in loading:
            running = self.rows.running[row]
            if any(node.is_coming for node in running.lease.nodes):
                continue
            running.is_loading = False
            self.rows.follow_lease(row)
            gained = max(running.lease.length - running.cached_tokens, 0)
            if running.lease.length < len(running.ticket.request.token_ids):
                running.cached_tokens += gained
                self.counters.cached_tokens += gained

    def _admit(self) -> None:
        if not self.waiting or self.counters.steps < self._admit_at_step:
            return
        self._admit_at_step = self.counters.steps + ADMIT_AGAIN_STEPS
        for ticket in self.waiting.values():
            self.keys.prepare(ticket, self.served_sha(ticket))
        admission = self.keys.admission
        worst = None
        if self.active == self.slots:
            worst = admission.preempted(self.waiting.values(), self.rows.running)
            if worst is None:
                return
            self._park(worst)
        free = self.slots - self.active
        best = admission.admitted(self.clock(), self.waiting.values(), self.rows.running, free)
        if worst is not None:
            self.counters.preemptions += bool(best)
            best = best or [worst.ticket]
        for ticket in best:
            del self.waiting[ticket.request.request_id]
            self._start(ticket)
        if best:
            self._look_again()

    def _start(self, ticket: Ticket) -> None:
        wanted, sampled = ticket.request.weights_sha, ticket.parked
        if sampled is not None:
            self.keys.resume(sampled)
            self.rows.restore(sampled)
            ticket.parked = None
            return
        served = self.served_sha(ticket)
        if wanted is not None and wanted != served:
            self.counters.refused += 1
            detail = f"{wanted} was asked for, {served} is served"
            ticket.deliver(EngineRefused(Refusal.WEIGHTS_MISMATCH, detail))
            return
        running = self.keys.start(ticket, served)
        sampling = ticket.request.sampling
        self.rows.start(running, draw_noise(sampling.seed, sampling.max_tokens).numpy())
        self.counters.cached_tokens += running.cached_tokens

    def _park(self, running: Running) -> None:
        """Take the slot of a turn that goes on later; its pages may go when room is needed."""
        row = self.rows.running.index(running)
        sampled = self.rows.saved(row)
        self.keys.park(running, self._unknown(row))
        running.ticket.parked = sampled
        self.rows.stop(row)
        self.waiting[running.ticket.request.request_id] = running.ticket

    def _grow(self, running: Running, tokens: int, reason: EvictReason) -> bool:
        """Have pages for so many tokens; the worst turns give theirs up, at last this one itself."""
        while not self.keys.grow(running, tokens, reason):
            rows = self.rows
            candidates = [
                Retractable(
                    one,
                    one.ticket.rank,
                    int(rows.length[row] - rows.prompt_length[row]),
                    int(rows.prompt_length[row]),
                    one.ticket.arrival,
                )
                for row, one in enumerate(rows.running)
            ]
            worst = loser(candidates, self.keys.admission.rules.queue).running
            self._park(worst)
            self.counters.retractions += 1
            if worst is running:
                return False
        return True

    # -- the forward passes -----------------------------------------------------------------------

    def _prefill(self) -> None:
        chosen = self._prefilled()
        if not chosen:
            return
        rows, started = self.rows, self.clock()
        places = {id(one): row for row, one in enumerate(rows.running)}
        needy = np.array([places[id(one)] for one, _ in chosen], dtype=np.int64)
        counts = np.array([count for _, count in chosen], dtype=np.int64)
        steps = np.arange(counts.max())
        is_real = steps[None] < counts[:, None]
        positions = np.where(is_real, rows.kv_length[needy, None] + steps[None], 0)
        tokens = rows.tokens[needy[:, None], positions]
        batch = self._batch(rows.tables[needy], positions, is_real)
        fed = self._tensor(np.where(is_real, tokens, 0))
        adapted = self.adapters.of_chunks((rows.running[row] for row in needy), self.device)
        prefill(self.model, self.attention, batch, fed, adapted)
        for row, count in zip(needy.tolist(), counts.tolist(), strict=True):
            before, known = int(rows.kv_length[row]), rows.running[row].known_tokens
            self.keys.recomputed_tokens += max(min(known, before + count) - before, 0)
            rows.kv_length[row] = before + count
            self._fill(row)
        self.counters.prefilled_tokens += int(counts.sum())
        self.keys.note_prefill(int(counts.sum()), self.clock() - started)

    def _prefilled(self) -> list[tuple[Running, int]]:
        """Which rows compute how many tokens of their prompts in this step: the best ranked first.

        A page that another row computes in the same step is left to that row.
        """
        rows, n = self.rows, self.active
        missing = rows.length[:n] - 1 - rows.kv_length[:n]
        needy = [rows.running[row] for row in np.flatnonzero(missing > 0)]
        chosen: list[tuple[Running, int]] = []
        computing: set[bytes] = set()
        for running in sorted(needy, key=self._order):
            longest = max((count for _, count in chosen), default=0)
            if (len(chosen) + 1) * longest >= PREFILL_TOKENS_MAX:
                break
            count = self._chunk(running, computing)
            if not count or not self._grow(
                running, self._kv_length(running) + count, EvictReason.PROMPT
            ):
                continue
            start = self._kv_length(running)
            computing.update(running.digests[start // PAGE_TOKENS : (start + count) // PAGE_TOKENS])
            rows.follow_lease(rows.running.index(running))
            chosen.append((running, count))
        return [(one, count) for one, count in chosen if one.ticket.parked is None]

    def _chunk(self, running: Running, computing: set[bytes]) -> int:
        """Tokens that this row computes now; 0 while its next page comes from elsewhere."""
        rows = self.rows
        if running.is_loading or running.ticket.parked is not None:
            return 0
        row = rows.running.index(running)
        before = running.cached_tokens
        if self.keys.share(running):
            self.counters.cached_tokens += running.cached_tokens - before
            rows.follow_lease(row)
        at, place = divmod(int(rows.kv_length[row]), PAGE_TOKENS)
        is_next_known = not place and at < len(running.digests)
        if is_next_known and running.digests[at] in computing:
            return 0
        if self.keys.table.is_coming(running.lease, running.digests):
            return 0
        return int(min(rows.length[row] - 1 - rows.kv_length[row], PREFILL_CHUNK))

    def _kv_length(self, running: Running) -> int:
        return running.lease.length

    def _order(self, running: Running) -> tuple[float, int]:
        return self.keys.admission.queue_key(running.ticket)

    def _decode(self) -> None:
        self._grow_ready()
        rows, n = self.rows, self.active
        kv = rows.kv_length[:n]
        is_ready = self._ready()
        ready = np.flatnonzero(is_ready)
        if not len(ready):
            return
        fed = rows.tokens[np.arange(n), kv]
        batch = self._batch(rows.tables[:n], np.where(is_ready, kv, 0)[:, None], is_ready[:, None])
        adapted = self.adapters.of_step(rows.running, self.device)
        logits = decode(self.model, self.attention, batch, self._tensor(fed), adapted)
        chosen = slice(None) if len(ready) == n else ready
        tokens, logprobs = sample(
            logits[chosen],
            self._tensor(rows.noise[ready, rows.length[ready]]),
            self._tensor(rows.temperature[:n][chosen]),
            self._tensor(rows.top_p[:n][chosen]),
        )
        self._append(ready, tokens.cpu().numpy(), logprobs.float().cpu().numpy())

    def _ready(self) -> npt.NDArray[np.bool_]:
        rows, n = self.rows, self.active
        is_ready: npt.NDArray[np.bool_] = rows.kv_length[:n] == rows.length[:n] - 1
        is_ready[[row for row, one in enumerate(rows.running) if one.is_loading]] = False
        return is_ready

    def _grow_ready(self) -> None:
        """Have a page for the next token of every ready row: the best ranked first."""
        rows, n = self.rows, self.active
        is_short = self._ready() & (rows.kv_length[:n] >= rows.room[:n])
        short = [rows.running[row] for row in np.flatnonzero(is_short)]
        for running in sorted(short, key=self._order):
            if running.ticket.parked is not None:
                continue
            length = int(rows.kv_length[rows.running.index(running)])
            if self._grow(running, length + 1, EvictReason.GROWTH):
                rows.follow_lease(rows.running.index(running))

    def _batch(
        self,
        tables: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        is_real: npt.NDArray[np.bool_],
    ) -> PagedBatch:
        step = PAGE_TOKENS * PAGES_STEP
        pages = -(-(int(positions.max()) + 1) // step) * PAGES_STEP
        return paged_batch(self.keys.arena, tables[:, :pages], positions, is_real)

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
        turns = (rows.running[row] for row in ready)
        rows.versions[ready, at] = self.adapters.versions(turns, self.version)
        rows.kv_length[ready] += 1
        rows.length[ready] += 1
        self.counters.sampled_tokens += len(ready)
        for row in ready[rows.kv_length[ready] % PAGE_TOKENS == 0]:
            self._fill(int(row))

    def _ends_with_stop(self, row: int) -> bool:
        sampled = self.rows.tokens[row, self.rows.sampled(row)][-STOP_TAIL_TOKENS:]
        text = self.vocabulary.decode(int(t) for t in sampled)
        stops = self.rows.running[row].ticket.request.sampling.stop
        return any(stop in text for stop in stops)

    def _unknown(self, row: int) -> list[int]:
        """Tokens that have keys and that the page table does not know of."""
        rows, known = self.rows, self.rows.running[row].lease.length
        tokens: list[int] = rows.tokens[row, known : rows.kv_length[row]].tolist()
        return tokens

    def _fill(self, row: int) -> None:
        running = self.rows.running[row]
        if not running.is_loading and self.keys.fill(running.lease, self._unknown(row)):
            self.rows.follow_lease(row)

    # -- answers ----------------------------------------------------------------------------------

    def _stream(self) -> None:
        for row, running in enumerate(self.rows.running):
            if running.ticket.deliver_chunk is not None:
                self._send_chunk(row, running, None)

    def _send_chunk(self, row: int, running: Running, finish: Finish | None) -> None:
        sink, part = running.ticket.deliver_chunk, self.rows.sampled(row)
        start = part.start + running.streamed
        if sink is None or (start == part.stop and finish is None):
            return
        record = self.rows.record(row, slice(start, part.stop))
        running.streamed = part.stop - part.start
        sink(record.chunk(running.ticket.request.request_id, finish))

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
        running = self.rows.running[row]
        self._send_chunk(row, running, finish)
        record = self.rows.record(row, self.rows.sampled(row))
        if finish is Finish.ERROR:
            self.keys.poison(running)
        self._close(running, self._unknown(row), finish)
        self.rows.stop(row)
        ending = self._ending(running.ticket, finish, error)
        return self._answer(running.ticket, record, ending, running.cached_tokens)

    def _finish_waiting(self, request_id: RequestId, finish: Finish, error: str) -> GenResult:
        ticket = self.waiting.pop(request_id)
        parked = ticket.parked
        record = Record() if parked is None else parked.record
        if ticket.deliver_chunk is not None:
            streamed = 0 if parked is None else parked.running.streamed
            ticket.deliver_chunk(record.chunk(request_id, finish, streamed))
        ticket.waited_s += self.clock() - ticket.waiting_since_s
        if parked is not None:
            self._close(parked.running, (), finish)
        cached = 0 if parked is None else parked.running.cached_tokens
        return self._answer(ticket, record, self._ending(ticket, finish, error), cached)

    def _close(self, running: Running, tokens: Sequence[int], finish: Finish) -> None:
        """Keep a finished turn's pages for the next one; those of an aborted turn go."""
        rollout_id = running.ticket.request.rollout_id
        is_kept = finish in (Finish.STOP, Finish.LENGTH) and rollout_id not in self._released
        self.keys.close(running, tokens, is_kept)
        if rollout_id in self._released:
            self._released.discard(rollout_id)
            self.keys.release(rollout_id)
        self._look_again()

    def _ending(self, ticket: Ticket, finish: Finish, error: str | None) -> Ending:
        return Ending(finish, self.served_sha(ticket), self.clock(), error)

    def _answer(self, ticket: Ticket, record: Record, ending: Ending, cached: int) -> GenResult:
        result = result_of(ticket, record, ending, cached)
        if ending.finish in (Finish.STOP, Finish.LENGTH):
            self.counters.finished += 1
        else:
            self.counters.aborted += 1
        ticket.deliver(result)
        return result

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)
