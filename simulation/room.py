"""Who gets room on a modelled engine's device: admission of turns, eviction, pins, retraction.

Decisions come from `kv`; this module asks them with the engine's own snapshot and moves the pages. It
knows nothing of steps and time spent; `engine.py` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kv.eviction import victims
from kv.gaps import GapHistory, is_worth_keeping, return_cost_s, room_value
from kv.residency import choose, order_of
from kv.rules import Eviction, Gaps, KvRules
from kv.ttl import ttl_s
from simulation.device import Device
from simulation.physics import EnginePhysics
from simulation.stream import Phase, Prefix, Stream

RESERVE_SHARE: Final = 0.01
"""Pages that admission by arrival leaves free for growth: vLLM's watermark."""

ENTRY_SHARE: Final = 0.11
"""Of the device, which must stay free beside a turn whose context is not there at all: one that enters
is pushed out by the growth of those before it, and then all of its prefill was for nothing."""

GROWTH_TOKENS: Final = 256
"""What ranked admission sets aside for the growth of each running turn: a usual turn's output."""

WAIT_SMOOTHING: Final = 0.05
"""Of the running mean of waits for a slot: it follows a change of load within some twenty turns."""


@dataclass(slots=True)
class Room:
    """The device of one engine and everybody who holds or wants pages of it."""

    physics: EnginePhysics
    device: Device
    rules: KvRules
    streams: dict[int, Stream] = field(default_factory=dict)
    gaps: GapHistory = field(default_factory=GapHistory)
    usual_wait_s: float = 0.0
    value: float = 0.0
    """What more room is worth in this tick (`kv.gaps.room_value`)."""

    def join(self, stream: Stream) -> None:
        """A rollout is on this engine from now on."""
        self.streams[stream.key] = stream
        self.device.join(stream)

    def admit(
        self, now: float, waiting: Sequence[Stream], active: Sequence[Stream], slots_free: int
    ) -> list[Stream]:
        """The waiting turns that run now, their pages taken. `waiting` is in the queue's order."""
        if self.rules.eviction is Eviction.CLASSES:
            return self._admit_by_class(now, waiting, active, slots_free)
        return self._admit_in_turn(now, waiting, slots_free)

    def make_room_for_growth(self, now: float, short: int) -> None:
        """Evict so many pages from whoever does not run, as far as there is anybody."""
        if short > 0:
            self._evict(short, self._victims(self._holders(now, None)))

    def pin(self, now: float, stream: Stream) -> None:
        """A gap began: under a rule with a time to live its pages are pinned that long."""
        if self.rules.gaps is not Gaps.TTL:
            return
        known = self.gaps.by_kind.get(stream.tool)
        gaps = () if known is None else tuple(known.recent)
        compute, reload = self._returns_s(stream)
        back = compute if reload is None else min(compute, reload)
        stream.kept_until = now + ttl_s(gaps, back, self.usual_wait_s, self.rules.ttl)

    def unpin(self, now: float) -> bool:
        """Nothing can go on beside the pins: they end now. Whether there was any."""
        pinned = [s for s in self.streams.values() if s.kept_until > now and s.pages]
        for stream in pinned:
            stream.kept_until = now
        return bool(pinned)

    def note_wait(self, seconds: float) -> None:
        """A turn waited so long for its slot."""
        self.usual_wait_s += WAIT_SMOOTHING * (seconds - self.usual_wait_s)

    def drop(self, stream: Stream) -> None:
        """A stream is gone with all of its pages."""
        self.device.release(stream)
        self.streams.pop(stream.key, None)

    def _admit_in_turn(
        self, now: float, waiting: Sequence[Stream], slots_free: int
    ) -> list[Stream]:
        """Head of the queue first, as long as it fits beside what runs; others are evicted for it."""
        reserve = int(self.device.pages * RESERVE_SHARE)
        admitted: list[Stream] = []
        for stream in waiting[: max(slots_free, 0)]:
            if not self._make_room(now, stream, reserve):
                break
            self._take(stream)
            admitted.append(stream)
        return admitted

    def _admit_by_class(
        self, now: float, waiting: Sequence[Stream], active: Sequence[Stream], slots_free: int
    ) -> list[Stream]:
        """One snapshot: who fits, in the order of ranks; the others' pages are what may go."""
        device = self.device
        claimants = [s for s in self.streams.values() if s.pages and s.phase is Phase.GAP]
        claimants.extend(waiting)
        claimants.sort(key=order_of(self.rules))
        seen: set[int] = set()
        held = self._held_by(active, seen)
        full_s = self.physics.decode_step_s(self.physics.kv_capacity_tokens)
        self.value = room_value(self.physics.step_floor_s, full_s, held / device.pages)
        growth = GROWTH_TOKENS // device.page_tokens
        room = device.pages - held - growth * len(active)

        def claim(stream: Stream) -> int | None:
            return self._claim(now, stream, seen)

        def taken(stream: Stream) -> None:
            seen.add(id(stream.prefix))

        choice = choose(claimants, claim, taken, room, slots_free)
        if not choice.admitted:
            return self._admit_alone(now, waiting) if slots_free > 0 and not active else []
        self._evict_for(choice.admitted, choice.low)
        admitted: list[Stream] = []
        for stream in choice.admitted:
            if device.missing_for(stream, stream.context) > device.free:
                break
            self._take(stream)
            admitted.append(stream)
        return admitted

    def _admit_alone(self, now: float, waiting: Sequence[Stream]) -> list[Stream]:
        """Nothing runs, and no gap will end that keeps pages: the first turn runs, whoever has to go.

        It wants nearly all of the device, and what is set aside for growth and entry is for neighbours.
        """
        first = waiting[0]
        if any(stream.pages and stream.phase is Phase.GAP for stream in self.streams.values()):
            return []
        if not self._make_room(now, first, 0):
            return []
        self._take(first)
        return [first]

    def _take(self, stream: Stream) -> None:
        """Take a turn's pages and lock them; with its group's prefix there, that much is cached."""
        prefix = stream.prefix
        if not stream.is_on_prefix:
            stream.cached = prefix.tokens if prefix.is_resident else 0
            stream.awaits_prefix = prefix.is_resident and not prefix.is_computed
        self.device.hold(stream, stream.context)
        stream.phase = Phase.PREFILL

    def _held_by(self, active: Sequence[Stream], seen: set[int]) -> int:
        """Pages of everything that has a slot, each prefix once."""
        total = 0
        for stream in active:
            total += stream.pages
            if id(stream.prefix) not in seen:
                seen.add(id(stream.prefix))
                total += stream.prefix.pages
        return total

    def _claim(self, now: float, stream: Stream, seen: set[int]) -> int | None:
        """What a claimant needs, its group's prefix with the first of the group that fits."""
        if stream.phase is Phase.GAP:
            if not self._is_kept(now, stream):
                return None
            pages = stream.pages
        else:
            pages = self.device.pages_for(stream, stream.context)
            pages += GROWTH_TOKENS // self.device.page_tokens
            if stream.pages == 0:
                pages += int(self.device.pages * ENTRY_SHARE * self._entry_risk(stream))
        if id(stream.prefix) not in seen:
            pages += stream.prefix.pages
        return pages

    def _entry_risk(self, stream: Stream) -> float:
        """What being pushed out again costs, as a share of computing anew: little where a tier keeps it."""
        if not self.device.host_tokens:
            return 1.0
        tokens = stream.context
        return min(1.0, self.physics.reload_s(tokens) / self.physics.prefill_after_s(tokens, 0))

    def _is_kept(self, now: float, stream: Stream) -> bool:
        if self.rules.gaps is not Gaps.EXPECTED:
            return True
        residual = self.gaps.residual_s(stream.tool, now - stream.gap_since)
        share = stream.pages / self.device.pages
        cost = return_cost_s(*self._returns_s(stream))
        return is_worth_keeping(residual, share, self.value, cost)

    def _returns_s(self, stream: Stream) -> tuple[float, float | None]:
        """Of bringing a stream's pages back: computed anew, and from the host tier if there is one."""
        prefix = stream.prefix.tokens
        tokens = stream.cached - prefix
        compute = self.physics.prefill_after_s(tokens, prefix)
        return compute, self.physics.reload_s(tokens) if self.device.host_tokens else None

    def _holders(self, now: float, besides: Stream | None) -> list[Stream | Prefix]:
        """Whose pages may go; not those that `besides` has use for."""
        holders = [
            stream
            for stream in self.streams.values()
            if stream.pages
            and stream is not besides
            and stream.kept_until <= now
            and not stream.is_active
        ]
        return [*holders, *self._loose(holders, [] if besides is None else [besides])]

    def _loose(self, holders: Sequence[Stream], needed_by: Sequence[Stream]) -> list[Prefix]:
        """Prefixes that may go when these holders' pages went."""
        needed = {id(stream.prefix) for stream in needed_by}
        left: dict[int, int] = {}
        loose = [one for one in self.device.idle.values() if id(one) not in needed]
        for holder in holders:
            prefix = holder.prefix
            left[id(prefix)] = left.get(id(prefix), prefix.streams) - 1
            if left[id(prefix)] == 0 and id(prefix) not in needed:
                loose.append(prefix)
        return loose

    def _victims(self, holders: Sequence[Stream | Prefix]) -> list[Stream | Prefix]:
        return victims(holders, self.rules.eviction, demotes=self.rules.demotion)

    def _make_room(self, now: float, stream: Stream, reserve: int) -> bool:
        """Free what a turn needs by evicting whoever the rule names first."""
        short = self.device.missing_for(stream, stream.context) + reserve - self.device.free
        if short <= 0:
            return True
        holders = self._holders(now, stream)
        if sum([holder.pages for holder in holders]) < short:
            return False
        self._evict(short, self._victims(holders))
        return True

    def _evict_for(self, admitted: Sequence[Stream], low: Sequence[Stream]) -> None:
        """Free what these turns need together, as far as there is anybody."""
        device = self.device
        short = sum([device.missing_for(s, s.context) for s in admitted]) - device.free
        if short > 0:
            holders = [stream for stream in self.streams.values() if stream.is_unused]
            holders.extend([stream for stream in low if stream.pages])
            self._evict(short, _merged(low, self._loose(holders, admitted)))

    def _evict(self, short: int, order: Sequence[Stream | Prefix]) -> None:
        """Shed pages in this order; by class those of ended rollouts go before all."""
        if short <= 0:
            return
        if self.rules.eviction is Eviction.CLASSES:
            ended = [stream for stream in self.streams.values() if stream.is_unused]
            order = [*victims(ended, Eviction.CLASSES), *order]
        for holder in order:
            if short <= 0:
                return
            short -= self._shed(holder, short)

    def _shed(self, holder: Stream | Prefix, pages: int) -> int:
        before = self.device.free
        if isinstance(holder, Prefix):
            if holder.is_idle:
                self.device.evict_prefix(holder)
            return self.device.free - before
        self.device.shed(holder, holder.pages if holder.is_unused else pages)
        if holder.is_unused:
            self.drop(holder)
        return self.device.free - before


def _merged(low: Sequence[Stream], loose: Sequence[Prefix]) -> list[Stream | Prefix]:
    """Prefixes among those whose pages may go, worst first: before the first that ranks better."""
    left = sorted(loose, key=lambda prefix: (prefix.rank, prefix.key))
    order: list[Stream | Prefix] = []
    for stream in low:
        while left and stream.pages and stream.rank < left[-1].rank:
            order.append(left.pop())
        order.append(stream)
    return [*order, *reversed(left)]
