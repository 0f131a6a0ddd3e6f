"""Which waiting turns get a slot and pages: one snapshot a tick, read by admission and by eviction alike.

Running turns hold their pages and may grow. Behind them waiting turns and the pages of rollouts whose tools
run are taken in the order of their ranks as long as they fit (`kv.residency`); who does not is `low_ref`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kv.gaps import GapHistory, is_worth_keeping
from kv.residency import Choice, choose, order_of
from kv.rules import Eviction, Gaps, KvRules, Queue
from kv.ttl import ttl_s
from workers.rollout.embedded.pages.nodes import WORST_RANK, Lease, Node, Trajectory, pages_for
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.turns import Running, Ticket

GROWTH_TOKENS: Final = 256
"""Set aside for the growth of each running turn: a usual turn's output, as in the simulated engine."""

ENTRY_SHARE: Final = 0.11
"""Of the device, which must stay free beside a turn of which nothing is there: one that enters is pushed out
by the growth of those before it, and then all of its prefill was for nothing. As in the simulated engine."""

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
    last_used: float

    @property
    def is_waiting(self) -> bool:
        """Its turn waits; else its tool runs."""
        return self.ticket is not None


@dataclass(slots=True)
class Admission:
    """Asks `kv` with the engine's own state."""

    table: PageTable
    rules: KvRules
    gaps: GapHistory = field(default_factory=GapHistory)
    page_s: float = 0.0
    """Measured seconds of computing a page anew."""
    usual_wait_s: float = 0.0

    def queue_key(self, ticket: Ticket) -> tuple[int, int]:
        """Order in which waiting turns get slots and prefill."""
        return ticket.order if self.rules.queue is Queue.RANK else (0, ticket.arrival)

    def admitted(
        self, now: float, waiting: Iterable[Ticket], running: Sequence[Running], slots_free: int
    ) -> list[Ticket]:
        """The turns that start now, best first; marks who is `low_ref` until the next snapshot."""
        ordered = sorted(waiting, key=self.queue_key)
        room, claimants = self._room(running), self._claimants(ordered)
        if self.rules.eviction is Eviction.CLASSES:
            claimants.sort(key=order_of(self.rules))
        choice = choose(claimants, self._claim(now), room, slots_free)
        self._mark(choice)
        admitted = [one.ticket for one in choice.admitted if one.ticket is not None]
        if not admitted and not running and slots_free and ordered:
            return ordered[:1]
        return admitted

    def preempted(self, waiting: Iterable[Ticket], running: Sequence[Running]) -> Running | None:
        """The running turn whose slot the best waiting turn of its tenant takes, if it is better."""
        if self.rules.queue is not Queue.RANK or not running:
            return None
        worst = max(running, key=lambda one: one.ticket.order)
        tenant = worst.ticket.request.tenant
        mine = (one for one in waiting if one.request.tenant == tenant)
        best = min(mine, key=lambda one: one.order, default=None)
        if best is None or best.rank >= worst.ticket.rank:
            return None
        freed = sum(1 for node in worst.lease.nodes if node.locks == 1) + _growth(worst)
        needed = self._needed(best, set())
        return worst if needed <= self._room(running) + freed else None

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
            gaps = [one for one in trajectories.values() if one.path and not one.leases]
            gaps.sort(key=lambda one: (one.rank, one.rollout_id))
            found += [_claimant(key, None, one) for key, one in enumerate(gaps, len(found))]
        return found

    def _claim(self, now: float) -> Callable[[Claimant], int | None]:
        seen: set[bytes | int] = set()

        def claim(claimant: Claimant) -> int | None:
            if claimant.ticket is not None:
                return self._needed(claimant.ticket, seen)
            assert claimant.trajectory is not None
            return self._held(claimant.trajectory, seen, now)

        return claim

    def _needed(self, ticket: Ticket, seen: set[bytes | int]) -> int:
        """Pages to run, less those that others who run or are taken before it hold anyway."""
        names: list[bytes | int]
        if ticket.parked is not None:
            names = [_name(node) for node in ticket.parked.running.lease.nodes]
        else:
            names = list(ticket.digests or ())
        shared = sum(1 for name in names if name in seen or self._is_locked(name))
        seen.update(names)
        pages = pages_for(min(ticket.length + GROWTH_TOKENS, ticket.end)) - shared
        if self.rules.eviction is Eviction.CLASSES and not self._is_known(ticket):
            pages += int(self.table.tree.total * ENTRY_SHARE)
        return pages

    def _is_known(self, ticket: Ticket) -> bool:
        trajectory = self.table.tree.trajectories.get(ticket.request.rollout_id)
        return ticket.parked is not None or (trajectory is not None and bool(trajectory.path))

    def _held(self, trajectory: Trajectory, seen: set[bytes | int], now: float) -> int | None:
        names = [_name(one) for one in trajectory.path if one.page is not None and not one.locks]
        own = [name for name in names if name not in seen]
        if not self._is_kept(trajectory, len(own), now):
            return None
        seen.update(own)
        return len(own)

    def _is_kept(self, trajectory: Trajectory, pages: int, now: float) -> bool:
        if trajectory.kept_until > now or self.rules.gaps is not Gaps.EXPECTED:
            return True
        residual_s = self.gaps.residual_s(ANY_TOOL, now - trajectory.path[-1].last_used)
        share = pages / self.table.tree.total
        return is_worth_keeping(residual_s, share, ROOM_VALUE, pages * self.page_s)

    def _is_locked(self, name: bytes | int) -> bool:
        tree = self.table.tree
        node = tree.index.get(name) if isinstance(name, bytes) else tree.nodes.get(name)
        return node is not None and node.locks > 0

    def _room(self, running: Sequence[Running]) -> int:
        tree = self.table.tree
        return tree.total - tree.locked - sum(_growth(one) for one in running)

    def _mark(self, choice: Choice[Claimant]) -> None:
        for trajectory in self.table.tree.trajectories.values():
            trajectory.is_low = False
        for one in choice.low:
            if one.trajectory is not None:
                one.trajectory.is_low = True


def _claimant(key: int, ticket: Ticket | None, trajectory: Trajectory | None) -> Claimant:
    path = [] if trajectory is None else trajectory.path
    rank = WORST_RANK if trajectory is None else trajectory.rank
    return Claimant(
        key=key,
        rank=rank if ticket is None else ticket.rank,
        arrival=0 if ticket is None else ticket.arrival,
        trajectory=trajectory,
        ticket=ticket,
        pages=len(path),
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
