"""Which waiting turns get a slot and pages: one snapshot a tick, read by admission and by eviction alike.

Running turns hold their pages and may grow. Behind them waiting turns and the pages of rollouts whose tools
run are taken in the order of their ranks as long as they fit (`kv.residency`); who does not is `low_ref`.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from kv.gaps import GapHistory, is_worth_keeping, return_cost_s
from kv.ranks import class_of
from kv.residency import Choice, choose, order_of
from kv.rules import Eviction, Gaps, KvRules, Queue
from kv.ttl import ttl_s
from workers.rollout.embedded.pages.nodes import WORST_RANK, Lease, Node, Trajectory, pages_for
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.shares import SlotShares
from workers.rollout.embedded.turns import Running, Ticket
from workers.rollout.embedded.yielding import NOBODY, Yielding

GROWTH_TOKENS: Final = 256
"""Set aside for the growth of each running turn: a usual turn's output, as in the simulated engine."""

ENTRY_SHARE: Final = 0.11
"""Of the device, which must stay free beside a turn of which nothing is there but its group's prompt: one
that enters is pushed out by the growth of those before it, and then all of its prefill was for nothing.
As in the simulated engine."""

ROOM_VALUE: Final = 1.0
"""What room is worth to others, in shares of an engine that is full (`kv.gaps.room_value`): the step time
of this engine hardly depends on how much of the device is in use."""

WAIT_SMOOTHING: Final = 0.05
"""Of the running mean of waits for a slot: it follows a change of load within some twenty turns."""

ANY_TOOL: Final = "any"
"""The engine does not know which tool runs; gaps are judged by all gaps that it saw."""


@dataclass(slots=True, eq=False)
class Claimant:
    """A waiting turn, or the pages of a rollout whose tool runs, as `kv.residency` looks at them."""

    key: int
    rank: int
    arrival: int
    trajectory: Trajectory | None
    ticket: Ticket | None
    pages: int
    """None where only its siblings' are there."""
    last_used: float

    @property
    def is_waiting(self) -> bool:
        """Its turn waits; else its tool runs."""
        return self.ticket is not None

    @property
    def tenant(self) -> str:
        """Whose turn waits; empty where a tool runs."""
        return "" if self.ticket is None else self.ticket.request.tenant


@dataclass(frozen=True, slots=True)
class Decision:
    """Of one tick: waiting turns that start, best first, and running ones that lose their slots."""

    admitted: Sequence[Ticket] = ()
    yielding: Sequence[Running] = ()
    is_for_gaps: bool = False
    """Nothing runs, and nobody starts: room is kept for rollouts whose tools will answer."""


@dataclass(slots=True)
class Admission:
    """Asks `kv` with the engine's own state."""

    table: PageTable
    rules: KvRules
    slots: int = 1
    gaps: GapHistory = field(default_factory=GapHistory)
    shares: SlotShares = field(default_factory=SlotShares)
    page_s: float = 0.0
    """Measured seconds of computing a page anew."""
    reload_s: float | None = None
    """Measured seconds of bringing one back from an outer tier; None where none keeps any."""
    usual_wait_s: float = 0.0

    def queue_key(self, ticket: Ticket) -> tuple[int, int]:
        """Order in which waiting turns get slots and prefill."""
        return ticket.order if self.rules.queue is Queue.RANK else (0, ticket.arrival)

    def decided(
        self, now: float, waiting: Iterable[Ticket], running: Sequence[Running], slots_free: int
    ) -> Decision:
        """Who starts and who yields now; marks who is `low_ref` until the next snapshot."""
        ordered = sorted(waiting, key=self.queue_key)
        if slots_free <= 0 and not self._may_yield(ordered, running):
            return Decision()
        claimants = self._claimants(ordered)
        if self.rules.eviction is Eviction.CLASSES:
            claimants.sort(key=order_of(self.rules))
        claimants = self.shares.interleaved(claimants, self.slots, now)
        found = self._found(claimants, _Tick(now, running, slots_free))
        self._mark(found)
        admitted = [one.ticket for one in found.started if one.ticket is not None]
        if not admitted and not running and slots_free and ordered:
            if self._awaits_gap(found):
                return Decision(is_for_gaps=True)
            # The first turn wants nearly all of the device; margins are for neighbours.
            return Decision(ordered[:1])
        return Decision(admitted, found.tick.yielding.turns)

    def note_wait(self, seconds: float) -> None:
        """A turn waited so long for its slot."""
        self.usual_wait_s += WAIT_SMOOTHING * (seconds - self.usual_wait_s)

    def ttl_s(self, pages: int) -> float:
        """How long so many pages are pinned when a gap begins, under a rule with a time to live."""
        back_s = pages * self.page_s
        return ttl_s(tuple(self.gaps.every.recent), back_s, self.usual_wait_s, self.rules.ttl)

    def _claimants(self, ordered: Sequence[Ticket]) -> list[Claimant]:
        """Turns in the order of the queue; by class also the gaps behind them."""
        trajectories = self.table.tree.trajectories
        found = [
            _claimant(key, one, trajectories.get(one.request.rollout_id))
            for key, one in enumerate(ordered)
        ]
        if self.rules.eviction is Eviction.CLASSES:
            named = {one.request.rollout_id for one in ordered}
            gaps = [
                one
                for one in trajectories.values()
                if one.path and not one.leases and one.rollout_id not in named
            ]
            gaps.sort(key=lambda one: (one.rank, one.rollout_id))
            found += [_claimant(key, None, one) for key, one in enumerate(gaps, len(found))]
        return found

    def _may_yield(self, ordered: Sequence[Ticket], running: Sequence[Running]) -> bool:
        if self.rules.queue is not Queue.RANK:
            return False
        return any(NOBODY.next_for(one, running, has_slot=False) for one in _first(ordered))

    def _found(self, claimants: Sequence[Claimant], tick: "_Tick") -> "_Found":
        """Who starts, and the turns that yield to them: the best one that does not fit asks for the worst.

        A tenant that only lacks a slot of its own takes none of another's, and keeps nobody of another one
        from taking their own.
        """
        choice = self._choose(claimants, tick)
        found = _Found(tick, list(choice.admitted), choice.low)
        if self.rules.queue is not Queue.RANK:
            return found
        left, skipped = list(claimants), list[Claimant]()
        while (blocked := choice.blocked) is not None and blocked.ticket is not None:
            has_slot = choice.has_slot
            worse = tick.yielding.next_for(blocked.ticket, tick.running, has_slot=has_slot)
            if worse is not None:
                tick = tick.without(worse)
            elif has_slot:
                break
            else:
                # Whoever was asked for this one in vain keeps the slot.
                tick = found.tick
                theirs = [one for one in left if one.tenant == blocked.tenant]
                skipped += [one for one in theirs if one not in found.started]
                left = [one for one in left if one.tenant != blocked.tenant or one in found.started]
            choice = self._choose(left, tick)
            if blocked in choice.admitted:
                # Others that fit into what was freed wait for the next tick: nobody went for them.
                found = _Found(tick, [*found.started, blocked], [*choice.low, *skipped])
        return found

    def _choose(self, claimants: Sequence[Claimant], tick: "_Tick") -> Choice[Claimant]:
        seen: set[bytes | int] = set()
        names: list[bytes | int] = []
        """Of the pages that the claimant who was asked last needs or holds."""

        def claim(claimant: Claimant) -> int | None:
            nonlocal names
            names = self._names(claimant)
            if claimant.ticket is not None:
                return self._needed(claimant.ticket, names, seen, tick)
            assert claimant.trajectory is not None
            own = sum(1 for name in names if name not in seen)
            return own if self._is_kept(claimant.trajectory, own, tick.now) else None

        def taken(_: Claimant) -> None:
            seen.update(names)

        return choose(claimants, claim, taken, self._room(tick), tick.slots_free)

    def _names(self, claimant: Claimant) -> list[bytes | int]:
        """Of the pages that a claimant needs, or holds and nobody who runs does."""
        ticket = claimant.ticket
        if ticket is None:
            assert claimant.trajectory is not None
            path = claimant.trajectory.path
            return [_name(one) for one in path if one.page is not None and not one.locks]
        known = self.table.tree.trajectories.get(ticket.request.rollout_id)
        if ticket.parked is not None:
            return [_name(node) for node in ticket.parked.running.lease.nodes]
        if known is not None and known.is_private:
            return [_name(node) for node in known.path]
        return list(ticket.digests or ())

    def _needed(
        self,
        ticket: Ticket,
        names: Sequence[bytes | int],
        seen: Set[bytes | int],
        tick: "_Tick",
    ) -> int:
        """Pages to run, less those that others who run or are taken before it hold anyway."""
        shared = sum(1 for name in names if name in seen or self._is_locked(name, tick))
        pages = pages_for(min(ticket.length + GROWTH_TOKENS, ticket.end)) - shared
        enters = self.rules.eviction is Eviction.CLASSES and not self._has_own(ticket)
        if enters and not tick.is_before(ticket):
            pages += int(self.table.tree.total * ENTRY_SHARE)
        return pages

    def _has_own(self, ticket: Ticket) -> bool:
        """Whether anything of its context is there that is not its siblings' as well."""
        known = self.table.tree.trajectories.get(ticket.request.rollout_id)
        return ticket.parked is not None or has_own(known)

    def _is_kept(self, trajectory: Trajectory, pages: int, now: float) -> bool:
        if trajectory.kept_until > now or self.rules.gaps is not Gaps.EXPECTED:
            return True
        share = pages / self.table.tree.total
        residual_s = self.gaps.residual_s(ANY_TOOL, now - trajectory.path[-1].last_used)
        return is_worth_keeping(residual_s, share, ROOM_VALUE, self._return_s(pages))

    def _return_s(self, pages: int) -> float:
        reload_s = None if self.reload_s is None else pages * self.reload_s
        return return_cost_s(pages * self.page_s, reload_s)

    def _awaits_gap(self, found: "_Found") -> bool:
        """Whether an idle engine waits for a tool: one that ends before its pages would be back.

        Starting the best waiting turn would push those pages out, as it does not fit beside them.
        """
        if self.rules.gaps is not Gaps.EXPECTED:
            return False
        low = {id(one.trajectory) for one in found.low}
        return any(
            self._ends_soon(one, found.tick.now)
            for one in self.table.tree.trajectories.values()
            if has_own(one) and not one.leases and id(one) not in low
        )

    def _ends_soon(self, trajectory: Trajectory, now: float) -> bool:
        """Before its pages would be back. All of the engine waits, so the room is worth all of it."""
        elapsed_s = now - trajectory.path[-1].last_used
        residual_s = self.gaps.residual_s(ANY_TOOL, elapsed_s)
        if not self.gaps.every.ordered:
            # Nothing is known of tools: as long again (Lindy's rule), or a first one is waited for for ever.
            residual_s = elapsed_s
        return is_worth_keeping(residual_s, 1.0, ROOM_VALUE, self._return_s(len(trajectory.path)))

    def _is_locked(self, name: bytes | int, tick: "_Tick") -> bool:
        tree = self.table.tree
        node = tree.index.get(name) if isinstance(name, bytes) else tree.nodes.get(name)
        return node is not None and node.locks > tick.unlocked.get(node.key, (node, 0))[1]

    def _room(self, tick: "_Tick") -> int:
        tree = self.table.tree
        freed = sum(1 for node, count in tick.unlocked.values() if node.locks == count)
        growth = sum(_growth(one) for one in tick.yielding.rest(tick.running))
        return tree.total - tree.locked + freed - growth

    def _mark(self, found: "_Found") -> None:
        for trajectory in self.table.tree.trajectories.values():
            trajectory.is_low = False
        low = [one.trajectory for one in found.low if one.trajectory is not None]
        for trajectory in (*low, *(one.lease.trajectory for one in found.tick.yielding.turns)):
            trajectory.is_low = True


class _Tick:
    """What one snapshot is, if some turns yielded."""

    def __init__(
        self,
        now: float,
        running: Sequence[Running],
        slots_free: int,
        yielding: Yielding = NOBODY,
    ) -> None:
        self.now = now
        self.running = running
        self.yielding = yielding
        self.slots_free = slots_free
        self.unlocked = yielding.locks()
        self.worst = max((class_of(one.ticket.rank) for one in running), default=None)

    def without(self, running: Running) -> "_Tick":
        """If this one yielded as well."""
        return _Tick(self.now, self.running, self.slots_free + 1, self.yielding.and_(running))

    def is_before(self, ticket: Ticket) -> bool:
        """Whether a running turn is of a worse class: that one gives way to growth before this one."""
        return self.worst is not None and class_of(ticket.rank) < self.worst


@dataclass(frozen=True, slots=True)
class _Found:
    """What is decided: in which snapshot, who starts, and whose pages may go."""

    tick: _Tick
    started: list[Claimant]
    low: list[Claimant]


def _first(ordered: Sequence[Ticket]) -> list[Ticket]:
    """The best waiting turn of each tenant."""
    found: dict[str, Ticket] = {}
    for ticket in ordered:
        found.setdefault(ticket.request.tenant, ticket)
    return list(found.values())


def has_own(trajectory: Trajectory | None) -> bool:
    """Whether pages of it are on the device that nobody else has use for: not its group's prompt."""
    path = () if trajectory is None else trajectory.path
    return any(node.page is not None and len(node.references) == 1 for node in reversed(path))


def _claimant(key: int, ticket: Ticket | None, trajectory: Trajectory | None) -> Claimant:
    path = [] if trajectory is None else trajectory.path
    rank = WORST_RANK if trajectory is None else trajectory.rank
    return Claimant(
        key=key,
        rank=rank if ticket is None else ticket.rank,
        arrival=0 if ticket is None else ticket.arrival,
        trajectory=trajectory,
        ticket=ticket,
        pages=len(path) if has_own(trajectory) else 0,
        last_used=path[-1].last_used if path else 0.0,
    )


def _growth(running: Running) -> int:
    """Pages that a running turn may still take soon."""
    ticket, lease = running.ticket, running.lease
    length = max(len(ticket.request.token_ids), lease.length)
    return max(pages_for(min(length + GROWTH_TOKENS, ticket.end)) - _count(lease), 0)


def _count(lease: Lease) -> int:
    return len(lease.nodes)


def _name(node: Node) -> bytes | int:
    return node.key if node.digest is None else node.digest
