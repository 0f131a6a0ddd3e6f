"""Two modelled engines under random work: what a world would do to them, drawn from one seed.

Every callback of the clock is a tick. After each one the pages add up, each stream is in one place,
nothing admitted in the tick lost a page in it, and nobody was passed over.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kv.ranks import MEMBER_SPAN, RankClass, class_of, compose, group_part
from kv.rules import Eviction, KvRules, Queue
from simulation.device import Device
from simulation.engine import ModelledEngine
from simulation.stream import Phase, Prefix, Stream
from tests.unit.simulation.machines import physics
from tests.unit.simulation.modelled import PAGE_TOKENS, Yard, prefix_of

PAGES: Final = 56
"""The least that admission by class lets the longest context in on; room for about three others."""

SLOTS: Final = 6
LIVE_MAX: Final = 14
"""Rollouts under way at once: three devices would hold them."""

DRAIN_MAX: Final = 50_000
"""Ticks within which all work must end once no more comes; more are a livelock."""

OPS: Final = ("insert", "insert", "rerank", "leave", "migrate", "migrate", "sync", "pass")


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting turn as a tick found it."""

    rank: int
    rank_class: RankClass
    has_pages: bool


@dataclass(slots=True)
class Watched(Device):
    """A device that remembers who was admitted and who lost pages in a tick."""

    admitted: list[Stream] = field(default_factory=list)
    shedding: list[Stream] = field(default_factory=list)

    def hold(self, stream: Stream, context: int) -> None:
        """Only an admission holds pages for a stream that waits."""
        if stream.phase is Phase.WAITING:
            self.admitted.append(stream)
        Device.hold(self, stream, context)

    def shed(self, stream: Stream, pages: int) -> int:
        """Remember the loser."""
        taken = Device.shed(self, stream, pages)
        if taken:
            self.shedding.append(stream)
        return taken


@dataclass(slots=True)
class Yards(Yard):
    """The engines, their streams and the tools that run."""

    seed: int = 0
    rules: KvRules = field(default_factory=KvRules)
    has_host_tier: bool = True
    engines: list[ModelledEngine] = field(default_factory=list)
    homes: dict[Stream, ModelledEngine] = field(default_factory=dict)
    """Streams whose rollout goes on, with their engine."""
    counts: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    version: int = 0
    chance: Random = field(init=False)
    _prefixes: dict[tuple[int, int], Prefix] = field(default_factory=dict)
    _ordinals: int = 0
    _tools: dict[Stream, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Two engines with small devices, one of them with a smaller host tier."""
        self.chance = Random(self.seed)
        for number in range(2):
            host_tokens = self.chance.choice((320, 4_000)) if self.has_host_tier else 0
            engine = self.engine(
                self.rules,
                pages=PAGES,
                host_tokens=host_tokens,
                of=physics(slots=SLOTS),
                name=f"engine{number}",
            )
            watched = Watched(PAGES, PAGE_TOKENS, host_tokens)
            engine.device = engine.room.device = watched
            self.engines.append(engine)

    # -- what happens ------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        """So many operations and ticks, then everything that was begun ends."""
        for _ in range(steps):
            if self.chance.random() < 0.2:
                self.operate(self.chance.choice(OPS))
                self.check()
            else:
                self.tick()
        begun = set(self.homes)
        for _ in range(DRAIN_MAX):
            if not self.homes:
                break
            assert self.tick(), f"{len(self.homes)} rollouts were forgotten"
        assert not self.homes, f"{len(begun)} rollouts do not end"
        for engine in self.engines:
            tiers = engine.device.counts
            self.counts["evict"] += tiers.evictions
            self.counts["offload"] += tiers.offloads
            self.counts["reload"] += tiers.reloads
            self.counts["retract"] += tiers.retractions

    def operate(self, op: str) -> None:
        """One thing that the world does to an engine."""
        chance = self.chance
        live = list(self.homes)
        match op:
            case "insert" if len(live) < LIVE_MAX:
                self._insert()
            case "rerank" if live:
                self._rerank()
            case "leave" if live and chance.random() < 0.3:
                stream = chance.choice(live)
                self.homes.pop(stream).leave(stream, keep_unused=chance.random() < 0.5)
                self.ended += 1
            case "migrate":
                self._migrate([s for s in live if s.phase is Phase.GAP])
            case "sync":
                self.version += 1
                for engine in self.engines:
                    engine.sync(self.version)
            case _:
                return
        self.counts[op] += 1

    def tick(self) -> bool:
        """One callback, and what must be true after it; False when nothing is left to happen."""
        before = [{s.key: _claim(s) for _, _, s in engine.waiting} for engine in self.engines]
        for engine in self.engines:
            assert isinstance(engine.device, Watched)
            engine.device.admitted.clear()
            engine.device.shedding.clear()
        if not self.clock.run_next():
            return False
        self.counts["tick"] += 1
        self.check()
        for engine, waited in zip(self.engines, before, strict=True):
            self._check_tick(engine, waited)
        return True

    def turn_sampled(self, engine: ModelledEngine, stream: Stream) -> None:
        """The tool runs, or the rollout ends."""
        turns = stream.trajectory.turns
        self.counts["turn"] += 1
        if stream.turn == len(turns):
            del self.homes[stream]
            self.ended += 1
            engine.leave(stream, keep_unused=True)
            return
        self.counts["gap"] += 1
        seconds = turns[stream.turn - 1].tool_s
        engine.begin_gap(stream, self.clock.now + seconds)
        self._after_tool(stream, seconds)

    def synced(self, engine: ModelledEngine, version: int) -> None:
        """Versions only rise."""
        assert version >= engine.version

    def _after_tool(self, stream: Stream, seconds: float) -> None:
        turn = stream.turn

        def done() -> None:
            engine = self.homes.get(stream)
            if engine is None or stream.phase is not Phase.GAP or stream.turn != turn:
                return
            engine.gaps.add(stream.tool, seconds)
            following = stream.trajectory.turns[turn]
            engine.wait(stream, following.new_tokens, following.output_tokens)

        self.clock.after(seconds, done)

    def _insert(self) -> None:
        """A group of one to three members on one engine."""
        chance = self.chance
        self._ordinals += 1
        place, prefix = chance.randrange(2), prefix_of(self._ordinals, chance.randint(1, 200))
        self._prefixes[place, self._ordinals] = prefix
        engine = self.engines[place]
        rank_class = chance.choice((RankClass.PROMOTED, RankClass.CRITICAL, RankClass.NORMAL))
        for member in range(chance.randint(1, 3)):
            later = [(chance.randint(1, 30), chance.randint(1, 80)) for _ in range(3)]
            turns = [(prefix.tokens, chance.randint(1, 80)), *later[: chance.randint(0, 3)]]
            tool_s = chance.choice((0.5, 20.0, 400.0, 5_000.0))
            stream = self.stream(prefix, *turns, tool_s=tool_s)
            stream.rank = compose(rank_class, self._ordinals, member)
            self.homes[stream] = engine
            self.begin(engine, stream)

    def _rerank(self) -> None:
        """Another order of the groups on one engine."""
        engine = self.chance.choice(self.engines)
        mine = [stream for stream, home in self.homes.items() if home is engine]
        places = {stream.ordinal: self.chance.randint(0, 50) for stream in mine}
        rank_class = self.chance.choice((RankClass.CRITICAL, RankClass.NORMAL))
        engine.rerank(
            {s: compose(rank_class, places[s.ordinal], s.rank % MEMBER_SPAN) for s in mine}
        )

    def _migrate(self, in_gap: list[Stream]) -> None:
        """A rollout whose tool runs goes to the other engine, with or without its pages."""
        if not in_gap:
            self.counts["migrate"] -= 1
            return
        stream = self.chance.choice(in_gap)
        source = self.homes.pop(stream)
        place = 1 - self.engines.index(source)
        target = self.engines[place]
        prefix = self._prefixes.setdefault(
            (place, stream.ordinal), prefix_of(stream.ordinal, stream.prefix.tokens)
        )
        kept = stream.cached + stream.hosted
        rest_s = max(stream.gap_until - self.clock.now, 0.0)
        source.leave(stream, keep_unused=False)
        self.keys += 1
        moved = Stream(
            stream.rollout_id, 1, stream.hop + 1, self.keys, stream.ordinal,
            stream.trajectory, prefix, stream.rank, turn=stream.turn, prompt=stream.context,
        )  # fmt: skip
        moved.computed = stream.context
        if self.chance.random() < 0.7:
            moved.imported = kept
            moved.import_at = self.clock.now + target.physics.transfer_s(kept)
        self.homes[moved] = target
        target.join(moved)
        target.begin_gap(moved, self.clock.now + rest_s)
        self._after_tool(moved, rest_s)

    # -- what must be true ---------------------------------------------------------------------

    def check(self) -> None:
        """After every operation and every tick."""
        for engine in self.engines:
            self._check_pages(engine)
            self._check_places(engine)
        names = [stream.rollout_id for stream in self.homes]
        assert len(names) == len(set(names)), "a rollout is on two engines"

    def _check_pages(self, engine: ModelledEngine) -> None:
        """Pages in use + free = total on every tier, each prefix counted once."""
        device, streams = engine.device, list(engine.room.streams.values())
        prefixes = {id(s.prefix): s.prefix for s in streams}
        for prefix in prefixes.values():
            holders = sum(1 for s in streams if s.prefix is prefix and s.is_on_prefix)
            assert holders == prefix.streams
            assert prefix.is_resident == (holders > 0 or prefix.group_id in device.idle)
            assert (prefix.group_id in device.idle) == prefix.is_idle
        assert {id(one) for one in device.idle.values()} <= prefixes.keys(), "a prompt of nobody"
        shared = sum(prefix.pages for prefix in prefixes.values() if prefix.is_resident)
        assert sum(s.pages for s in streams) + shared + device.free == device.pages
        assert device.free >= 0
        hosted = sum(s.hosted for s in streams)
        assert hosted == device.host_used == sum(s.hosted for s in device.hosted.values())
        assert hosted <= device.host_tokens

    def _check_places(self, engine: ModelledEngine) -> None:
        """Each stream is in the one list of its phase; slots are not overdrawn."""
        lists = {
            Phase.WAITING: [s for _, _, s in engine.waiting],
            Phase.FETCHING: list(engine.fetching.values()),
            Phase.PREFILL: engine.prefilling,
            Phase.DECODE: engine.decoding,
        }
        for phase, listed in lists.items():
            assert all(s.phase is phase for s in listed), phase
            there = {s.key for s in engine.room.streams.values() if s.phase is phase}
            assert sorted(s.key for s in listed) == sorted(there), phase
        assert sum(len(lists[phase]) for phase in list(lists)[1:]) <= SLOTS
        for stream, home in self.homes.items():
            assert stream.phase is not Phase.ENDED
            assert stream.key in home.room.streams

    def _check_tick(self, engine: ModelledEngine, waited: dict[int, Claim]) -> None:
        """One snapshot: no page of an admitted turn went, and nobody was passed over."""
        assert isinstance(engine.device, Watched)
        admitted = engine.device.admitted
        self.counts["admit"] += len(admitted)
        if self.rules.eviction is Eviction.CLASSES:
            losers = {stream.key for stream in engine.device.shedding}
            assert not [s for s in admitted if s.key in losers], "admitted and evicted in one tick"
        for _, _, stream in engine.waiting:
            was_before = stream.key in waited and waited[stream.key].rank == stream.rank
            if not was_before or stream in admitted:
                continue
            for other in admitted:
                if other.key in waited:
                    self._check_order(stream, other, waited)

    def _check_order(self, stream: Stream, other: Stream, waited: dict[int, Claim]) -> None:
        """A turn was admitted while this one stayed: it was not before it in the queue."""
        mine, its = waited[stream.key], waited[other.key]
        if self.rules.queue is Queue.ARRIVAL:
            assert other.arrival < stream.arrival, "a later turn overtook"
        elif self.rules.eviction is Eviction.CLASSES:
            assert its.rank_class <= mine.rank_class, "a better class was passed over"
            is_alike = its.rank_class == mine.rank_class and its.has_pages == mine.has_pages
            assert not is_alike or group_part(its.rank) <= group_part(mine.rank), "passed over"
        else:
            assert its.rank <= mine.rank, "passed over"


def _claim(stream: Stream) -> Claim:
    return Claim(stream.rank, class_of(stream.rank), stream.pages > 0)
