"""A modelled inference engine: continuous batching in virtual time, physics of `simulation.physics`.

    turn arrives -> WAITING -> (room, slot) -> FETCHING -> PREFILL -> DECODE -> turn sampled -> GAP

Everything happens at step boundaries. While nothing prefills, steps until the next boundary that
matters are taken at once, their time in closed form; an arrival cuts them at the step under way.
Rules (queue, eviction, gaps, retraction) come from `kv`; one snapshot is decided on at a boundary.
"""

from bisect import insort
from dataclasses import dataclass
from typing import Protocol

from kv.gaps import GapHistory
from kv.reload import Source, cheaper
from kv.retraction import loser
from kv.rules import KvRules, Queue
from simulation.clock import VirtualClock
from simulation.device import Device
from simulation.physics import PREFILL_TOKENS_PER_STEP, EnginePhysics
from simulation.room import Room
from simulation.stream import Phase, Stream


class EngineListener(Protocol):
    """Hears what an engine did."""

    def turn_sampled(self, engine: "ModelledEngine", stream: Stream) -> None:
        """The generation of the open turn ended; the stream's tool may run."""
        ...

    def synced(self, engine: "ModelledEngine", version: int) -> None:
        """The engine serves this version."""
        ...


@dataclass(slots=True)
class EngineCounts:
    """What an engine did in a run."""

    steps: int = 0
    prefill_steps: int = 0
    prefilled_tokens: int = 0
    recomputed_tokens: int = 0
    prompt_tokens: int = 0
    """Of all admitted turns; a perfect cache computes only what is new in them."""
    cached_tokens: int = 0
    sampled_tokens: int = 0
    wasted_tokens: int = 0
    """Sampled in turns that were given up."""
    busy_s: float = 0.0
    prefill_s: float = 0.0
    """Of `busy_s`, the arithmetic of prefill."""
    stalled_s: float = 0.0
    decoding_s: float = 0.0
    """Sequence-seconds of decoding: divided by time it is the active batch."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """What an engine is made of."""

    name: str
    physics: EnginePhysics
    rules: KvRules
    page_tokens: int = 16
    has_host_tier: bool = False
    weight_sync_s: float = 5.0
    """Seconds that a weight sync stops the engine for."""
    version: int = 0


class ModelledEngine:
    """One engine; the world places streams on it and hears from it."""

    def __init__(self, model: EngineModel, clock: VirtualClock, listener: EngineListener) -> None:
        self.name = model.name
        self.physics = model.physics
        self.rules = model.rules
        self.stall_s = model.weight_sync_s
        self.device = Device(
            model.physics.kv_capacity_tokens // model.page_tokens,
            model.page_tokens,
            model.physics.host_tier_tokens if model.has_host_tier else 0,
        )
        self.room = Room(model.physics, self.device, model.rules)
        self.clock = clock
        self.listener = listener
        self.version = model.version
        self.counts = EngineCounts()
        self.waiting: list[tuple[int, int, Stream]] = []
        """(rank or arrival, key, stream), ascending."""
        self.fetching: dict[int, Stream] = {}
        self.prefilling: list[Stream] = []
        self.decoding: list[Stream] = []
        self.sync_to: int | None = None
        self._loading = model.version
        """Newest version that was asked for."""
        self.link_free_at = 0.0
        self._arrivals = 0
        self._is_dirty = False
        self._plan = 0
        """Rises with every planned segment; a callback of an older one is void."""
        self._segment: tuple[float, int, int, int, float] | None = None
        """Begin, steps, first KV tokens, sequences, end of the decode steps under way."""
        self._is_idle = True
        self._next_physics = model.physics
        self._kv: int | None = None
        """What `_kv_tokens` says, carried over the steps; None when who decodes has changed."""

    @property
    def gaps(self) -> GapHistory:
        """Tool gaps of this engine's rollouts, by kind."""
        return self.room.gaps

    # -- what the world asks ---------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """A placed rollout is on this engine from now on; its turn waits or its tool runs."""
        self.room.join(stream)

    def wait(self, stream: Stream, new_tokens: int, output_tokens: int) -> None:
        """The next turn of a stream wants to generate."""
        stream.prompt = stream.context + new_tokens
        stream.sampled, stream.output_left = 0, output_tokens
        self.requeue(stream)

    def requeue(self, stream: Stream) -> None:
        """Queue a stream whose open turn still has output to sample."""
        self._arrivals += 1
        stream.arrival, stream.arrived = self._arrivals, self.clock.now
        stream.phase = Phase.WAITING
        insort(self.waiting, (self._queue_key(stream), stream.key, stream))
        self._wake()

    def begin_gap(self, stream: Stream, until: float) -> None:
        """The stream's tool runs from now until a time that only the world knows."""
        now = self.clock.now
        stream.phase, stream.gap_since, stream.gap_until = Phase.GAP, now, until
        stream.last_used = now
        self._is_dirty = True
        self.room.pin(now, stream)
        if stream.kept_until > now:
            self.clock.at(stream.kept_until, self._wake)

    def leave(self, stream: Stream, keep_unused: bool) -> None:
        """A rollout left: ended (its pages stay, unused, until needed) or taken elsewhere."""
        if stream.phase is Phase.WAITING:
            self.waiting.remove((self._queue_key(stream), stream.key, stream))
        elif stream.phase in (Phase.PREFILL, Phase.DECODE, Phase.FETCHING):
            self._interrupt(stream)
        stream.phase, stream.last_used = Phase.ENDED, self.clock.now
        if keep_unused and stream.pages:
            self.device.forget_hosted(stream)
        else:
            self.room.drop(stream)
        self._wake()

    def rerank(self, ranks: dict[Stream, int]) -> None:
        """Take new ranks."""
        for stream, rank in ranks.items():
            stream.rank = rank
        if self.rules.queue is Queue.RANK:
            self.waiting = sorted((s.rank, s.key, s) for _, _, s in self.waiting)
        self._wake()

    def sync(self, version: int) -> None:
        """Load weights at the next step boundary, each version once; pages are kept."""
        if version <= self._loading:
            return
        self.sync_to = self._loading = version
        self._wake()

    def change_physics(self, physics: EnginePhysics) -> None:
        """Run at another speed from the next step on."""
        self._next_physics = physics
        self._wake()

    def stop(self) -> None:
        """The process died: nothing of it happens any more."""
        self._plan += 1
        self._segment, self._is_idle = None, False
        self.fetching.clear()

    # -- boundaries ------------------------------------------------------------------------

    def _queue_key(self, stream: Stream) -> int:
        return stream.rank if self.rules.queue is Queue.RANK else stream.arrival

    def _wake(self) -> None:
        """Something changed: look at it at the end of the step under way."""
        self._is_dirty = True
        now = self.clock.now
        if self._is_idle:
            self._is_idle = False
            self._schedule(now)
        elif self._segment is not None:
            self._cut(now)

    def _schedule(self, when: float) -> None:
        self._plan += 1
        plan = self._plan

        def act() -> None:
            if plan == self._plan:
                self._boundary()

        self.clock.at(when, act)

    def _cut(self, now: float) -> None:
        """End the decode steps under way with the one that runs now."""
        assert self._segment is not None
        begin, steps, kv, sequences, _ = self._segment
        low, high = 1, steps
        while low < high:
            middle = (low + high) // 2
            if begin + self.physics.decode_steps_s(kv, sequences, middle) >= now:
                high = middle
            else:
                low = middle + 1
        if low < steps:
            end = begin + self.physics.decode_steps_s(kv, sequences, low)
            self._segment = (begin, low, kv, sequences, end)
            self._schedule(max(end, now))

    def _boundary(self) -> None:
        self._finish_steps()
        self.physics = self._next_physics
        self._end_turns()
        if self.sync_to is not None:
            self._stall()
            return
        if self._is_dirty:
            self._is_dirty = False
            self._admit()
        wanted = self._make_room_for_growth()
        if self.prefilling:
            self._prefill_step()
        elif self.decoding:
            self._decode_steps(wanted or self._fitting_steps())
        else:
            self._is_idle = True

    def _stall(self) -> None:
        assert self.sync_to is not None
        version, self.sync_to = self.sync_to, None
        self.counts.stalled_s += self.stall_s
        plan = self._plan = self._plan + 1

        def done() -> None:
            if plan == self._plan:
                self.version = version
                self._is_dirty = True
                self.listener.synced(self, version)
                if plan == self._plan:
                    self._boundary()

        self.clock.after(self.stall_s, done)

    # -- steps -----------------------------------------------------------------------------

    def _kv_tokens(self) -> int:
        """KV of the decoding sequences as the next step reads it, shared prefixes as the engine does."""
        if self._kv is not None:
            return self._kv
        if not self.physics.reads_prefix_once:
            self._kv = sum([stream.prompt + stream.sampled for stream in self.decoding])
            return self._kv
        total = 0
        seen: set[int] = set()
        for stream in self.decoding:
            total += stream.prompt + stream.sampled
            prefix = stream.prefix
            if id(prefix) in seen:
                total -= prefix.tokens
            seen.add(id(prefix))
        self._kv = total
        return total

    def _decode_steps(self, steps: int) -> None:
        sequences = len(self.decoding)
        kv = self._kv_tokens()
        now = self.clock.now
        seconds = self.physics.decode_steps_s(kv, sequences, steps)
        self._segment = (now, steps, kv, sequences, now + seconds)
        self._schedule(now + seconds)

    def _pages_to_grow(self, steps: int) -> int:
        """Free pages that so many decode steps take."""
        device, total = self.device, 0
        for stream in self.decoding:
            context = stream.prompt + stream.sampled + steps
            if context > stream.holds_up_to:
                total += device.pages_for(stream, context) - stream.pages
        return total

    def _wanted_steps(self) -> int:
        """Until the next turn ends."""
        return min([stream.output_left for stream in self.decoding])

    def _fitting_steps(self) -> int:
        """As many steps as there is room for until the next turn ends; at least one fits."""
        free = self.device.free
        low, high = 1, self._wanted_steps()
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._pages_to_grow(middle) <= free else (low, middle - 1)
        return low

    def _finish_steps(self) -> None:
        """Fold the decode steps that just ended into the streams."""
        if self._segment is None:
            return
        begin, steps, _, sequences, end = self._segment
        self._segment = None
        seconds = end - begin
        counts = self.counts
        counts.steps += steps
        counts.busy_s += seconds
        counts.decoding_s += seconds * sequences
        self._grow(steps)

    def _grow(self, steps: int) -> None:
        """Every decoding sequence sampled so many tokens."""
        version, device = self.version, self.device
        tokens = steps * len(self.decoding)
        self.counts.sampled_tokens += tokens
        if self._kv is not None:
            self._kv += tokens
        for stream in self.decoding:
            if stream.oldest_version is None:
                stream.oldest_version = version
            stream.newest_version = version
            stream.sampled += steps
            stream.output_left -= steps
            context = stream.prompt + stream.sampled
            stream.cached = stream.computed = context
            if context > stream.holds_up_to:
                device.hold(stream, context)

    def _end_turns(self) -> None:
        done = [stream for stream in self.decoding if stream.output_left == 0]
        if not done:
            return
        self._kv = None
        self.decoding = [stream for stream in self.decoding if stream.output_left > 0]
        self._is_dirty = True
        for stream in done:
            stream.turn += 1
            stream.sampled_total += stream.sampled
            stream.phase, stream.last_used = Phase.GAP, self.clock.now
            self.listener.turn_sampled(self, stream)

    def _prefill_step(self) -> None:
        """One step: a chunk of prefill, and a token of every decoding sequence beside it."""
        self._take_over_prefixes()
        budget = PREFILL_TOKENS_PER_STEP
        seconds = self.physics.decode_step_s(self._kv_tokens())
        chunks: list[tuple[Stream, int]] = []
        for stream in self.prefilling:
            left = stream.prompt + stream.sampled - stream.cached
            tokens = min(left, budget)
            if tokens > 0:
                budget -= tokens
                part = self.physics.prefill_after_s(tokens, stream.cached)
                seconds += part
                self.counts.prefill_s += part
                chunks.append((stream, tokens))
            if budget == 0:
                break
        if not chunks:
            seconds = 0.0
        plan = self._plan = self._plan + 1

        def done() -> None:
            if plan == self._plan:
                self._finish_prefill(chunks, seconds)

        self.clock.after(seconds, done)

    def _take_over_prefixes(self) -> None:
        """Who computed its group's prefix may have left or been retracted: a sibling begins anew."""
        missing = [stream for stream in self.prefilling if not stream.prefix.is_computed]
        computing = {id(stream.prefix) for stream in missing if not stream.awaits_prefix}
        for stream in missing:
            if id(stream.prefix) not in computing:
                computing.add(id(stream.prefix))
                stream.awaits_prefix = False
                stream.cached -= stream.prefix.tokens

    def _finish_prefill(self, chunks: list[tuple[Stream, int]], seconds: float) -> None:
        counts = self.counts
        if chunks:
            counts.steps += 1
            counts.prefill_steps += 1
            counts.busy_s += seconds
            counts.decoding_s += seconds * len(self.decoding)
            self._grow(1)
        for stream, tokens in chunks:
            if stream.phase is not Phase.PREFILL:
                continue
            counts.prefilled_tokens += tokens
            counts.recomputed_tokens += max(0, min(stream.computed - stream.cached, tokens))
            stream.cached += tokens
            stream.computed = max(stream.computed, stream.cached)
            if stream.cached >= stream.prefix.tokens and not stream.awaits_prefix:
                stream.prefix.is_computed = True
        still: list[Stream] = []
        for stream in self.prefilling:
            if stream.cached >= stream.prompt + stream.sampled and stream.prefix.is_computed:
                stream.phase = Phase.DECODE
                self.decoding.append(stream)
                self._kv = None
            else:
                still.append(stream)
        self.prefilling = still
        self._boundary()

    # -- turns begin, retract, are taken away -------------------------------------------------

    def _admit(self) -> None:
        if not self.waiting:
            return
        slots = self.physics.slots - len(self.decoding) - len(self.prefilling) - len(self.fetching)
        waiting = [stream for _, _, stream in self.waiting]
        active = [*self.fetching.values(), *self.prefilling, *self.decoding]
        admitted = self.room.admit(self.clock.now, waiting, active, slots)
        if not admitted:
            return
        keys = {stream.key for stream in admitted}
        self.waiting = [entry for entry in self.waiting if entry[1] not in keys]
        for stream in admitted:
            self._start(stream)

    def _start(self, stream: Stream) -> None:
        """A waiting turn has its pages: fetch what lies elsewhere, compute the rest."""
        stream.admitted = self.clock.now
        waited = stream.admitted - stream.arrived
        stream.waited_s += waited
        self.room.note_wait(waited)
        self.counts.prompt_tokens += stream.context
        if stream.imported:
            self._fetch(stream, max(stream.import_at, self.clock.now))
            return
        if stream.hosted and self._reload(stream):
            return
        self.device.forget_hosted(stream)
        self._to_prefill(stream)

    def _to_prefill(self, stream: Stream) -> None:
        self.counts.cached_tokens += min(stream.cached, stream.context)
        stream.phase = Phase.PREFILL
        self.prefilling.append(stream)
        if self.rules.queue is Queue.RANK:
            self.prefilling.sort(key=_by_rank)

    def _reload(self, stream: Stream) -> bool:
        """From the host tier, when that is cheaper than computing; the engine goes on meanwhile."""
        begin = max(self.link_free_at, self.clock.now)
        seconds = self.physics.reload_s(stream.hosted)
        compute = self.physics.prefill_after_s(stream.hosted, stream.cached)
        if cheaper(seconds, begin - self.clock.now, compute) is Source.COMPUTE:
            return False
        self.link_free_at = begin + seconds
        self._fetch(stream, self.link_free_at)
        return True

    def _fetch(self, stream: Stream, there_at: float) -> None:
        """Pages arrive at a time, from the host tier or from the engine that the rollout left."""
        stream.phase = Phase.FETCHING
        self.fetching[stream.key] = stream

        def done() -> None:
            if self.fetching.pop(stream.key, None) is None:
                return
            if stream.imported:
                stream.cached = min(max(stream.cached, stream.imported), stream.context)
                stream.imported = 0
                stream.prefix.is_computed |= stream.cached >= stream.prefix.tokens
            else:
                self.device.fetched(stream)
            self._to_prefill(stream)
            self._wake()

        self.clock.at(there_at, done)

    def _make_room_for_growth(self) -> int:
        """Evict for all steps up to the next end of a turn; retract when not even one step fits.

        How many steps that is, when there was room for all; else 0.
        """
        while self.decoding:
            wanted = self._wanted_steps()
            short = self._pages_to_grow(wanted) - self.device.free
            if short <= 0:
                return wanted
            self.room.make_room_for_growth(self.clock.now, short)
            if self._pages_to_grow(1) <= self.device.free:
                return 0
            if len(self.decoding) + len(self.prefilling) + len(self.fetching) > 1:
                self._retract()
            elif not self.room.unpin(self.clock.now):
                raise RuntimeError(f"{self.name}: one context does not fit on the device")
        return 0

    def _retract(self) -> None:
        """The loser goes back to the queue with its place in the order; its pages may go from now on.

        They are found again by whoever did not need them, as in vLLM's cache of prefixes and SGLang's tree.
        """
        stream = loser([*self.decoding, *self.prefilling], self.rules.queue)
        self.device.counts.retractions += 1
        self._take_slot(stream)
        stream.last_used = stream.arrived = self.clock.now
        stream.phase = Phase.WAITING
        insort(self.waiting, (self._queue_key(stream), stream.key, stream))
        self._is_dirty = True

    def _interrupt(self, stream: Stream) -> None:
        """A running stream is taken away: what it sampled in this turn is lost."""
        if self._segment is not None and stream in self.decoding:
            self._cut(self.clock.now)
        self.counts.wasted_tokens += stream.sampled
        self._take_slot(stream)

    def _take_slot(self, stream: Stream) -> None:
        self.fetching.pop(stream.key, None)
        self.decoding = [one for one in self.decoding if one is not stream]
        self._kv = None
        self.prefilling = [one for one in self.prefilling if one is not stream]


def _by_rank(stream: Stream) -> tuple[int, int]:
    return stream.rank, stream.key
