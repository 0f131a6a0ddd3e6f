"""A modelled inference engine: continuous batching in virtual time, physics of `simulation.physics`.

    turn arrives -> WAITING -> (room, slot) -> FETCHING -> PREFILL -> DECODE -> turn sampled -> GAP

Everything happens at step boundaries. While nothing prefills, steps until the next boundary that
matters are taken at once, their time in closed form; an arrival cuts them at the step under way.
Rules (queue, eviction, gaps, retraction) come from `kv`; one snapshot is decided on at a boundary.
"""

from bisect import insort
from dataclasses import dataclass
from typing import Final, Protocol

from kv.eviction import victims
from kv.gaps import GapHistory, is_worth_keeping, room_value
from kv.ranks import group_part
from kv.reload import Source, cheaper
from kv.residency import choose
from kv.retraction import loser
from kv.rules import Eviction, Gaps, KvRules, Queue
from kv.ttl import ttl_s
from simulation.clock import VirtualClock
from simulation.device import Device
from simulation.physics import PREFILL_TOKENS_PER_STEP, EnginePhysics
from simulation.stream import Phase, Stream

RESERVE_SHARE: Final = 0.01
"""Pages that admission leaves free for growth: vLLM's watermark."""

ENTRY_SHARE: Final = 0.11
"""Of the device, which must stay free beside a turn whose context is not there at all: one that enters
is pushed out by the growth of those before it, and then all of its prefill was for nothing."""

WAIT_SMOOTHING: Final = 0.05
"""Of the running mean of waits for a slot: it follows a change of load within some twenty turns."""

GROWTH_TOKENS: Final = 256
"""What ranked admission sets aside for the growth of each running turn: a usual turn's output."""


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


class ModelledEngine:
    """One engine; the world places streams on it and hears from it."""

    def __init__(
        self,
        name: str,
        physics: EnginePhysics,
        device: Device,
        rules: KvRules,
        clock: VirtualClock,
        listener: EngineListener,
    ) -> None:
        self.name = name
        self.physics = physics
        self.device = device
        self.rules = rules
        self.clock = clock
        self.listener = listener
        self.version = -1
        self.counts = EngineCounts()
        self.gaps = GapHistory()
        self.streams: dict[int, Stream] = {}
        self.waiting: list[tuple[int, int, Stream]] = []
        """(rank or arrival, key, stream), ascending."""
        self.prefilling: list[Stream] = []
        self.decoding: list[Stream] = []
        self.fetching: int = 0
        self.sync_to: int | None = None
        self.link_free_at = 0.0
        self._full_step_s = physics.decode_step_s(physics.kv_capacity_tokens)
        self._room_value = 0.0
        self._usual_wait_s = 0.0
        self._arrivals = 0
        self._is_dirty = False
        self._plan = 0
        """Rises with every planned segment; a callback of an older one is void."""
        self._segment: tuple[float, int, int, int, float] | None = None
        """Begin, steps, first KV tokens, sequences, end of the decode steps under way."""
        self._is_idle = True

    # -- what the world asks ---------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """A placed rollout is on this engine from now on; its turn waits or its tool runs."""
        self.streams[stream.key] = stream

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
        if self.rules.gaps is Gaps.TTL:
            stream.kept_until = now + self._pin_s(stream)
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
            self.device.release(stream)
            del self.streams[stream.key]
        self._wake()

    def rerank(self, ranks: dict[Stream, int]) -> None:
        """Take new ranks."""
        for stream, rank in ranks.items():
            stream.rank = rank
        if self.rules.queue is Queue.RANK:
            self.waiting = sorted((s.rank, s.key, s) for _, _, s in self.waiting)
        self._wake()

    def sync(self, version: int) -> None:
        """Load weights at the next step boundary; pages are kept."""
        self.sync_to = version
        self._wake()

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
        self._end_turns()
        if self.sync_to is not None:
            self._stall()
            return
        if self._is_dirty:
            self._is_dirty = False
            self._admit()
        self._make_room_for_growth()
        if self.prefilling:
            self._prefill_step()
        elif self.decoding:
            self._decode_steps()
        else:
            self._is_idle = True

    def _stall(self) -> None:
        assert self.sync_to is not None
        version, self.sync_to = self.sync_to, None
        seconds = self.stall_s
        self.counts.stalled_s += seconds
        plan = self._plan = self._plan + 1

        def done() -> None:
            if plan == self._plan:
                self.version = version
                self._is_dirty = True
                self.listener.synced(self, version)
                if plan == self._plan:
                    self._boundary()

        self.clock.after(seconds, done)

    stall_s = 5.0
    """Seconds that a weight sync stops the engine for; the world sets the regime's."""

    # -- steps -----------------------------------------------------------------------------

    def _kv_tokens(self) -> int:
        """KV of the decoding sequences as the next step reads it, shared prefixes once."""
        total = 0
        seen: set[int] = set()
        for stream in self.decoding:
            total += stream.prompt + stream.sampled
            prefix = stream.prefix
            if id(prefix) in seen:
                total -= prefix.tokens
            seen.add(id(prefix))
        return total

    def _decode_steps(self) -> None:
        steps = self._fitting_steps(min(stream.output_left for stream in self.decoding))
        sequences = len(self.decoding)
        kv = self._kv_tokens()
        now = self.clock.now
        seconds = self.physics.decode_steps_s(kv, sequences, steps)
        self._segment = (now, steps, kv, sequences, now + seconds)
        self._schedule(now + seconds)

    def _pages_to_grow(self, steps: int) -> int:
        """Free pages that so many decode steps take."""
        pages_for = self.device.pages_for
        return sum(pages_for(s, s.prompt + s.sampled + steps) - s.pages for s in self.decoding)

    def _fitting_steps(self, wanted: int) -> int:
        """As many of the wanted steps as there is room for; at least one fits."""
        free = self.device.free
        if self._pages_to_grow(wanted) <= free:
            return wanted
        low, high = 1, wanted
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
        for stream in self.decoding:
            self._grow(stream, steps)

    def _grow(self, stream: Stream, tokens: int) -> None:
        if stream.sampled == 0 and stream.oldest_version is None:
            stream.oldest_version = self.version
        stream.newest_version = self.version
        stream.sampled += tokens
        stream.output_left -= tokens
        self.counts.sampled_tokens += tokens
        context = stream.prompt + stream.sampled
        stream.cached = stream.computed = context
        self.device.hold(stream, context)

    def _end_turns(self) -> None:
        done = [stream for stream in self.decoding if stream.output_left == 0]
        if not done:
            return
        self.decoding = [stream for stream in self.decoding if stream.output_left > 0]
        self._is_dirty = True
        for stream in done:
            stream.turn += 1
            stream.sampled_total += stream.sampled
            stream.phase, stream.last_used = Phase.GAP, self.clock.now
            self.listener.turn_sampled(self, stream)

    def _prefill_step(self) -> None:
        """One step: a chunk of prefill, and a token of every decoding sequence beside it."""
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

    def _finish_prefill(self, chunks: list[tuple[Stream, int]], seconds: float) -> None:
        counts = self.counts
        if chunks:
            counts.steps += 1
            counts.prefill_steps += 1
            counts.busy_s += seconds
            counts.decoding_s += seconds * len(self.decoding)
            for stream in self.decoding:
                self._grow(stream, 1)
        for stream, tokens in chunks:
            if stream.phase is not Phase.PREFILL:
                continue
            counts.prefilled_tokens += tokens
            counts.recomputed_tokens += max(0, min(stream.computed - stream.cached, tokens))
            stream.cached += tokens
            stream.computed = max(stream.computed, stream.cached)
            if stream.cached >= stream.prefix.tokens:
                stream.prefix.is_computed = True
        still: list[Stream] = []
        for stream in self.prefilling:
            if stream.cached >= stream.prompt + stream.sampled and stream.prefix.is_computed:
                stream.phase = Phase.DECODE
                self.decoding.append(stream)
            else:
                still.append(stream)
        self.prefilling = still
        self._boundary()

    # -- admission, eviction, retraction -----------------------------------------------------

    def _admit(self) -> None:
        if not self.waiting:
            return
        if self.rules.eviction is Eviction.CLASSES:
            self._admit_by_class()
        else:
            self._admit_in_turn()

    def _slots_free(self) -> int:
        return self.physics.slots - len(self.decoding) - len(self.prefilling) - self.fetching

    def _admit_in_turn(self) -> None:
        """Head of the queue first, as long as it fits beside what runs; others are evicted for it."""
        reserve = int(self.device.pages * RESERVE_SHARE)
        admitted = 0
        for _, _, stream in self.waiting:
            if self._slots_free() <= 0:
                break
            missing = self.device.missing_for(stream, stream.context)
            if not self._make_room(missing + reserve, stream):
                break
            self._start(stream)
            admitted += 1
        if admitted:
            del self.waiting[:admitted]

    def _admit_by_class(self) -> None:
        """One snapshot: who fits, in the order of ranks; the others' pages are what may go."""
        claimants = [stream for _, _, stream in self.waiting]
        for stream in self.streams.values():
            if stream.phase is Phase.GAP and stream.pages:
                claimants.append(stream)
        claimants.sort(key=_by_group)
        resident: set[int] = set()
        held_pages = self._active_pages()
        self._room_value = room_value(
            self.physics.step_floor_s, self._full_step_s, held_pages / self.device.pages
        )
        for stream in claimants:
            self._claim(stream, resident)
        active = self.prefilling + self.decoding
        growth = GROWTH_TOKENS // self.device.page_tokens
        room = self.device.pages - held_pages - growth * len(active)
        choice = choose(claimants, room, self._slots_free())
        if not choice.admitted:
            return
        needed = sum(self.device.missing_for(s, s.context) for s in choice.admitted)
        self._evict(needed - self.device.free, choice.low)
        admitted = set()
        for stream in choice.admitted:
            if self.device.missing_for(stream, stream.context) > self.device.free:
                break
            self._start(stream)
            admitted.add(stream.key)
        self.waiting = [entry for entry in self.waiting if entry[1] not in admitted]

    def _active_pages(self) -> int:
        """Pages of everything that holds a slot, with prefixes."""
        total = 0
        for stream in self.streams.values():
            if stream.is_active:
                total += stream.pages
        seen: set[int] = set()
        for stream in self.streams.values():
            if stream.is_active and id(stream.prefix) not in seen:
                seen.add(id(stream.prefix))
                total += stream.prefix.pages
        return total

    def _claim(self, stream: Stream, seen: set[int]) -> None:
        """What a claimant needs, its share of the prefix with the first of its group."""
        pages = self.device.pages_for(stream, stream.context)
        if stream.phase is Phase.GAP:
            pages = stream.pages
            stream.is_kept = self._is_kept(stream)
        else:
            pages += GROWTH_TOKENS // self.device.page_tokens
            if stream.pages == 0:
                pages += int(self.device.pages * ENTRY_SHARE)
        prefix = stream.prefix
        if id(prefix) not in seen:
            seen.add(id(prefix))
            pages += prefix.pages
        stream.claim_pages = pages

    def _is_kept(self, stream: Stream) -> bool:
        if self.rules.gaps is not Gaps.EXPECTED:
            return True
        elapsed = self.clock.now - stream.gap_since
        residual = self.gaps.residual_s(self._tool_of(stream), elapsed)
        share = stream.pages / self.device.pages
        tokens = stream.cached - stream.prefix.tokens
        back = self.physics.prefill_after_s(tokens, stream.prefix.tokens)
        if self.device.host_tokens:
            back = min(back, self.physics.reload_s(tokens))
        return is_worth_keeping(residual, share, self._room_value, back)

    def _pin_s(self, stream: Stream) -> float:
        """Continuum's time to live, from this tool's gaps and the waits that turns have had here."""
        known = self.gaps.by_kind.get(self._tool_of(stream))
        gaps = [] if known is None else list(known.recent)
        tokens = stream.cached - stream.prefix.tokens
        back = self.physics.prefill_after_s(tokens, stream.prefix.tokens)
        if self.device.host_tokens:
            back = min(back, self.physics.reload_s(tokens))
        return ttl_s(gaps, back, self._usual_wait_s, self.rules.ttl)

    def _tool_of(self, stream: Stream) -> str:
        return str(stream.trajectory.turns[stream.turn - 1].tool)

    def _make_room(self, pages: int, stream: Stream) -> bool:
        """Free pages by evicting whoever the rule names first; all or nothing."""
        short = pages - self.device.free
        if short <= 0:
            return True
        now = self.clock.now
        holders = [
            other
            for other in self.streams.values()
            if other.pages
            and not other.is_active
            and other is not stream
            and other.kept_until <= now
        ]
        if sum(holder.pages for holder in holders) < short:
            return False
        self._evict(short, victims(holders, self.rules.eviction))
        return self.device.free >= pages

    def _evict(self, short: int, order: list[Stream]) -> None:
        """Shed pages in this order, unused ones of ended rollouts before all."""
        if short <= 0:
            return
        for holder in self._unused():
            short -= self._shed(holder, short)
            if short <= 0:
                return
        for holder in order:
            if holder.pages:
                short -= self._shed(holder, short)
                if short <= 0:
                    return

    def _unused(self) -> list[Stream]:
        if self.rules.eviction is not Eviction.CLASSES:
            return []
        ended = [stream for stream in self.streams.values() if stream.is_unused]
        return victims(ended, Eviction.CLASSES)

    def _shed(self, holder: Stream, pages: int) -> int:
        before = self.device.free
        self.device.shed(holder, holder.pages if holder.is_unused else pages)
        if holder.is_unused and holder.pages == 0:
            self.device.release(holder)
            del self.streams[holder.key]
        return self.device.free - before

    def _start(self, stream: Stream) -> None:
        """Give a waiting turn its slot and its pages."""
        device, now = self.device, self.clock.now
        if not stream.prefix.is_resident or not stream.is_on_prefix:
            stream.cached = stream.prefix.tokens if stream.prefix.is_resident else 0
        device.hold(stream, stream.context)
        waited = now - stream.arrived
        stream.waited_s += waited
        self._usual_wait_s += WAIT_SMOOTHING * (waited - self._usual_wait_s)
        counts = self.counts
        counts.prompt_tokens += stream.context
        if stream.imported:
            self._import(stream)
            return
        if stream.hosted and self._fetch(stream):
            return
        device.forget_hosted(stream)
        counts.cached_tokens += min(stream.cached, stream.context)
        self._to_prefill(stream)

    def _to_prefill(self, stream: Stream) -> None:
        stream.phase = Phase.PREFILL
        self.prefilling.append(stream)
        if self.rules.queue is Queue.RANK:
            self.prefilling.sort(key=_by_rank)

    def _import(self, stream: Stream) -> None:
        """Pages of a migrated rollout: on their way since it left the other engine."""
        stream.phase = Phase.FETCHING
        self.fetching += 1

        def done() -> None:
            if stream.phase is not Phase.FETCHING:
                return
            self.fetching -= 1
            stream.cached = min(max(stream.cached, stream.imported), stream.context)
            stream.imported = 0
            stream.prefix.is_computed |= stream.cached >= stream.prefix.tokens
            self.counts.cached_tokens += stream.cached
            self._to_prefill(stream)
            self._wake()

        self.clock.at(max(stream.import_at, self.clock.now), done)

    def _fetch(self, stream: Stream) -> bool:
        """Reload from the host tier when that is cheaper than computing; the engine goes on."""
        now = self.clock.now
        begin = max(self.link_free_at, now)
        seconds = self.physics.reload_s(stream.hosted)
        compute = self.physics.prefill_after_s(stream.hosted, stream.cached)
        if cheaper(seconds, begin - now, compute) is Source.COMPUTE:
            return False
        self.link_free_at = begin + seconds
        stream.phase = Phase.FETCHING
        self.fetching += 1

        def done() -> None:
            if stream.phase is not Phase.FETCHING:
                return
            self.fetching -= 1
            self.device.fetched(stream)
            self.counts.cached_tokens += min(stream.cached, stream.context)
            self._to_prefill(stream)
            self._wake()

        self.clock.at(self.link_free_at, done)
        return True

    def _make_room_for_growth(self) -> None:
        """Evict for all steps up to the next end of a turn; retract when not even one step fits."""
        while self.decoding:
            wanted = min(stream.output_left for stream in self.decoding)
            short = self._pages_to_grow(wanted) - self.device.free
            if short <= 0:
                return
            holders = [s for s in self.streams.values() if s.pages and not s.is_active]
            if holders:
                self._evict(short, victims(holders, self.rules.eviction))
            if self._pages_to_grow(1) <= self.device.free:
                return
            if len(self.decoding) + len(self.prefilling) == 1:
                raise RuntimeError(f"{self.name}: one context does not fit on the device")
            self._retract()

    def _retract(self) -> None:
        """The loser goes back to the queue; its pages may be evicted like anybody's."""
        stream = loser(self.decoding or self.prefilling, self.rules.queue)
        self.device.counts.retractions += 1
        self.decoding = [one for one in self.decoding if one is not stream]
        self.prefilling = [one for one in self.prefilling if one is not stream]
        stream.last_used = self.clock.now
        self.device.shed(stream, stream.pages)
        arrival = stream.arrival
        stream.phase, stream.arrived = Phase.WAITING, self.clock.now
        stream.arrival = arrival
        insort(self.waiting, (self._queue_key(stream), stream.key, stream))

    def _interrupt(self, stream: Stream) -> None:
        """A running stream is taken away: what it sampled in this turn is lost."""
        if self._segment is not None and stream in self.decoding:
            self._cut(self.clock.now)
        if stream.phase is Phase.FETCHING:
            self.fetching -= 1
        self.counts.wasted_tokens += stream.sampled
        self.decoding = [one for one in self.decoding if one is not stream]
        self.prefilling = [one for one in self.prefilling if one is not stream]


def _by_rank(stream: Stream) -> tuple[int, int]:
    return stream.rank, stream.key


def _by_group(stream: Stream) -> tuple[int, bool, int, int]:
    """By rank; among members of a group those with pages first, or they would swap at every turn."""
    return group_part(stream.rank), stream.pages == 0, stream.rank, stream.key
