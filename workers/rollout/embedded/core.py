"""The embedded engine without its thread: admit, prefill, decode, finish; weights between steps.

One call of `step` is one decode step: better waiting turns take slots, prompts are prefilled in chunks,
then every ready row gets one token. Where pages run out the worst turn gives up its slot. Nothing here
waits or knows asyncio; the thread of `thread.py` calls in, one call at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import torch

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
from workers.models.vocab import Vocabulary
from workers.rollout.embedded.arena import PAGE_TOKENS, KvArena
from workers.rollout.embedded.counters import Counters
from workers.rollout.embedded.forward import arena_shape
from workers.rollout.embedded.keys import Keys, KeySizes
from workers.rollout.embedded.occupancy import Occupancy
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.pages.nodes import pages_for
from workers.rollout.embedded.passes import PAGES_STEP, Drawn, Passes
from workers.rollout.embedded.rows import Rows
from workers.rollout.embedded.shelf import LoadedAdapter
from workers.rollout.embedded.stop_text import StopText
from workers.rollout.embedded.turn_adapters import SavedAdapters, TurnAdapters
from workers.rollout.embedded.turns import Ending, Record, Running, Ticket, engine_rank, result_of
from workers.rollout.guards import check

WAITING_MAX: Final = 4096
"""Waiting requests; more are refused and counted, the caller holds them back."""

ADMIT_AGAIN_STEPS: Final = 16
"""Steps after which turns that did not fit are looked at again though nothing ended: gaps grow older."""

GAP_LOOK_S: Final = 0.05
"""The same while nothing runs and room is kept for rollouts whose tools will answer."""


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
        self._stop_text = StopText(vocabulary)
        self.slots = slots
        self.version = version
        self.weights_sha = weights_sha
        self.clock = clock
        self.counters = Counters()
        self._engaged_since: float | None = None
        """End of the last step, if turns went on beyond it."""
        context = model.config.max_position_embeddings
        arena = KvArena(arena_shape(model), sizes.pages, model.device)
        self.keys = Keys(arena, sizes, clock)
        self.keys.admission.slots = slots
        table_pages = -(-pages_for(context) // PAGES_STEP) * PAGES_STEP
        vocab_size = model.config.vocab_size
        self.rows = Rows(slots, context, vocab_size, table_pages, arena.null_page)
        self.adapters = TurnAdapters()
        self._occupancy = Occupancy(self.rows, self.keys, self.counters)
        self._passes = Passes(self._occupancy, self.adapters)
        self._arrivals = 0
        self._unanswered: dict[int, Ticket] = {}
        self._released: set[RolloutId] = set()
        self._next_deadline_s = math.inf
        self._admit_at_step = 0
        self._rests_until = 0.0

    @property
    def active(self) -> int:
        """Turns in engine slots."""
        return self._occupancy.active

    @property
    def waiting(self) -> dict[RequestId, Ticket]:
        """Turns without a slot, those among them that had one."""
        return self._occupancy.waiting

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything for anybody."""
        if self.active:
            return True
        waits = not all(one.is_expecting for one in self.waiting.values())
        return waits and self.clock() >= self._rests_until

    def submit(
        self,
        request: GenRequest,
        deliver: Callable[[GenResult | EngineRefused], None],
        deliver_chunk: Callable[[TokenChunk], None] | None = None,
    ) -> Ticket:
        """Accept a request into the waiting queue, or raise `EngineRefused`."""
        try:
            self._check(request)
        except EngineRefused:
            self.counters.refused += 1
            raise
        self._arrivals += 1
        ticket = Ticket(
            request,
            engine_rank(request.rank),
            self._arrivals,
            self.clock(),
            deliver,
            deliver_chunk,
        )
        ticket.adapter = self.adapters.find(request)
        self._released.discard(request.rollout_id)
        self._unanswered[ticket.arrival] = ticket
        self.waiting[request.request_id] = ticket
        self._next_deadline_s = min(self._next_deadline_s, ticket.deadline_s)
        self._look_again()
        return ticket

    def is_open(self, request: GenRequest) -> bool:
        """Whether this very request was accepted and is not answered, not another one of its id."""
        return any(one.request is request for one in self._unanswered.values())

    def expected(self, ticket: Ticket) -> None:
        """The pages that a waiting turn expected are there, or will not be."""
        ticket.is_expecting = False
        self._look_again()

    def step(self, admitting: bool = True) -> None:
        """Advance every running turn by at most one token."""
        engaged = self.clock() if self._engaged_since is None else self._engaged_since
        self._occupancy.collect()
        if admitting:
            self._admit()
        if not self.rows.running:
            self.rest()
            return
        counters, started = self.counters, self.clock()
        with torch.inference_mode():
            for running in self._passes.prefill(self.model):
                self._finish(self.rows.running.index(running), Finish.ERROR, NAN_LOGITS)
            counters.prefill_s += self.clock() - started
            drawn = self._passes.decode(self.model)
        if drawn is not None:
            self._append(drawn)
        counters.steps += 1
        ended = self.clock()
        counters.busy_s += ended - started
        counters.engaged_s += ended - engaged
        self._engaged_since = ended if self.rows.running else None

    def rest(self) -> None:
        """No step follows at once: the time until the next one is nobody's."""
        self._engaged_since = None

    def expire(self) -> float:
        """End what is past its deadline; returns when to come again, infinite if nothing is due."""
        now = self.clock()
        if now < self._next_deadline_s:
            return self._next_look_s(now)
        open_tickets = [*self.waiting.values(), *(r.ticket for r in self.rows.running)]
        late = [t.request.request_id for t in open_tickets if t.deadline_s <= now]
        self.abort(late, "deadline")
        self._next_deadline_s = min(
            (t.deadline_s for t in open_tickets if t.deadline_s > now), default=math.inf
        )
        return self._next_look_s(now)

    def abort(self, request_ids: Sequence[RequestId], cause: str) -> tuple[GenResult, ...]:
        """End these requests with what they have sampled; what only they computed is free at once."""
        return self._end_all(request_ids, Finish.ABORT, cause)

    def fail_all(self, cause: str) -> None:
        """End everything with `error`: the engine cannot go on."""
        try:
            self._end_all(self.open_requests(), Finish.ERROR, cause)
        finally:
            # Also what was on its way between queue and slot, and what could not be ended.
            for ticket in list(self._unanswered.values()):
                self._refuse(ticket, Refusal.CLOSED, cause)

    def close(self) -> None:
        """Give back what the outer tiers hold."""
        if self.keys.tiers is not None:
            self.keys.tiers.close()

    def open_requests(self) -> tuple[RequestId, ...]:
        """Ids of running and waiting requests."""
        running = (r.ticket.request.request_id for r in self.rows.running)
        return (*running, *self.waiting)

    def set_rank(self, ranks: Mapping[RolloutId, int]) -> None:
        """Re-rank turns, and pages for the choice of what to evict."""
        for ticket in (*self.waiting.values(), *(r.ticket for r in self.rows.running)):
            rank = ranks.get(ticket.request.rollout_id)
            ticket.rank = ticket.rank if rank is None else engine_rank(rank)
        for rollout_id, rank in ranks.items():
            self.keys.set_rank(rollout_id, engine_rank(rank))
        self._look_again()

    def retain(self, rollout_id: RolloutId, ttl_s: float) -> None:
        """Evict this rollout's pages after all others until the time is over."""
        self.keys.retain(rollout_id, ttl_s)

    def release(self, rollout_id: RolloutId) -> None:
        """Drop the rollout's pages, now or when its turn ends."""
        started = (*self.rows.running, *self._occupancy.parked)
        if any(one.ticket.request.rollout_id == rollout_id for one in started):
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

    def saved_adapters(self) -> SavedAdapters:
        """What `restore_adapters` needs to undo any number of swaps."""
        return self.adapters.saved(self._tickets())

    def restore_adapters(self, saved: SavedAdapters) -> None:
        """Undo swaps; what came since for a withdrawn version, and for no other, is refused."""
        for ticket in self.adapters.restore(saved, self._tickets()):
            # Nothing starts while an update is not verified: it waits.
            del self.waiting[ticket.request.request_id]
            self._refuse(ticket, Refusal.UNKNOWN_ADAPTER, "what was asked for was withdrawn")

    def served_sha(self, ticket: Ticket) -> str:
        """Identity of the weights that make this turn's tokens now."""
        return self.adapters.sha(ticket, self.weights_sha)

    def _tickets(self) -> list[Ticket]:
        return [*self.waiting.values(), *(one.ticket for one in self.rows.running)]

    def drop_stale_keys(self, kv: KvMode) -> None:
        """After an update: keys of other weights are found by nobody; with `drop`, all of them go."""
        for row in range(self.active):
            self._occupancy.fill(row)
        shas, open_turns = self.adapters.shas(self.weights_sha), self.rows.running
        self.keys.renew(self.served_sha, shas, kv, [*open_turns, *self._occupancy.parked])
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

    def _note_slots(self) -> None:
        self.keys.admission.shares.hold(self.rows.running, self.clock())

    def _next_look_s(self, now: float) -> float:
        rests = self._rests_until if self._rests_until > now else math.inf
        return min(self._next_deadline_s, rests)

    def _look_again(self) -> None:
        self._admit_at_step = 0
        self._rests_until = 0.0

    def _admit(self) -> None:
        if not self.waiting or self.counters.steps < self._admit_at_step:
            return
        self._admit_at_step = self.counters.steps + ADMIT_AGAIN_STEPS
        waiting = [one for one in self.waiting.values() if not one.is_expecting]
        for ticket in waiting:
            self.keys.prepare(ticket, self.served_sha(ticket))
        free, running = self.slots - self.active, self.rows.running
        decision = self.keys.admission.decided(self.clock(), waiting, running, free)
        if decision.is_for_gaps:
            self._look_again()
            self._rests_until = self.clock() + GAP_LOOK_S
        for yielding in decision.yielding:
            self._occupancy.park(yielding)
        self.counters.preemptions += len(decision.yielding)
        held = self.keys.hold(decision.admitted)
        for ticket, nodes in zip(decision.admitted, held, strict=True):
            self.keys.let_go(nodes)
            self._start(ticket)
        self._note_slots()
        if decision.admitted:
            self._look_again()

    def _start(self, ticket: Ticket) -> None:
        wanted, served = ticket.request.weights_sha, self.served_sha(ticket)
        if ticket.parked is None and wanted not in (None, served):
            del self.waiting[ticket.request.request_id]
            detail = f"{wanted} was asked for, {served} is served"
            self._refuse(ticket, Refusal.WEIGHTS_MISMATCH, detail)
            return
        self._occupancy.enter(ticket, served)

    def _append(self, drawn: Drawn) -> None:
        rows, ready = self.rows, drawn.ready
        # Logits that are not numbers, and infinite ones, show in the log-probability of any token.
        is_broken = np.isnan(drawn.logprobs)
        self._store(drawn.part(~is_broken))
        stopped = rows.stops[ready, drawn.tokens] & ~is_broken
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

    def _store(self, drawn: Drawn) -> None:
        rows, ready = self.rows, drawn.ready
        at = rows.length[ready]
        rows.tokens[ready, at] = drawn.tokens
        rows.logprobs[ready, at] = drawn.logprobs
        turns = (rows.running[row] for row in ready)
        rows.versions[ready, at] = self.adapters.versions(turns, self.version)
        rows.kv_length[ready] += 1
        rows.length[ready] += 1
        self.counters.sampled_tokens += len(ready)
        for row in ready[rows.kv_length[ready] % PAGE_TOKENS == 0]:
            self._occupancy.fill(int(row))

    def _ends_with_stop(self, row: int) -> bool:
        stops = self.rows.running[row].ticket.request.sampling.stop
        return self._stop_text.ends(self.rows.tokens[row, self.rows.sampled(row)], stops)

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
        self._close(running, self._occupancy.unknown(row), finish)
        self.rows.stop(row)
        self.keys.admission.shares.note_turn(self.clock() - running.started_s)
        self._note_slots()
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
        del self._unanswered[ticket.arrival]
        ticket.deliver(result)
        return result

    def _refuse(self, ticket: Ticket, reason: Refusal, detail: str) -> None:
        self.counters.refused += 1
        del self._unanswered[ticket.arrival]
        ticket.deliver(EngineRefused(reason, detail))
