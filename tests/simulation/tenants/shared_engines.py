"""LoRA jobs of several tenants on shared engines: slots are handed out by `kv.shares`, turns are drawn.

Discrete events over the real functions. Engines generate for all tenants alike, so a slot-second is an
engine-second over the slots. Each tenant waits with turns of drawn ranks; a bursty one is away at times.
"""

import heapq
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from domain.ids import OrganizationId
from kv.shares import Account, Ledger, WaitingTurn, next_turn

WAITING = 3
"""Turns that each tenant keeps waiting while it is there: backlogged, whoever is served."""


@dataclass(frozen=True, slots=True)
class Used:
    """A slot in use by a tenant's turn."""

    tenant: OrganizationId
    began: float
    ended: float


@dataclass(slots=True)
class SharedEngines:
    """Slots of the engines of one base model."""

    weights: dict[OrganizationId, float]
    slots: int
    chance: Random
    longest_turn_s: float = 20.0
    mean_turn_s: float = 4.0
    guaranteed: dict[OrganizationId, float] = field(default_factory=dict)
    away: dict[OrganizationId, list[tuple[float, float]]] = field(default_factory=dict)
    """Spans in which a tenant has no turns."""
    now: float = 0.0
    used: list[Used] = field(default_factory=list)
    idle_s: float = 0.0
    """Slot-seconds in which a slot was free and somebody waited."""
    ledger: Ledger[OrganizationId] = field(init=False)
    running: Counter[OrganizationId] = field(default_factory=Counter)
    _there: dict[OrganizationId, bool] = field(default_factory=dict)
    _heap: list[tuple[float, int, str, OrganizationId]] = field(default_factory=list)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(horizon_s=self.mean_turn_s)
        for tenant, weight in self.weights.items():
            self.ledger.accounts[tenant] = Account(weight, self.guaranteed.get(tenant, 0.0))
            self._there[tenant] = True
            self.ledger.wait(tenant, 0.0)
            for left, back in self.away.get(tenant, []):
                self._push(left, "leave", tenant)
                self._push(back, "return", tenant)

    def run(self, until: float) -> None:
        """Let time pass."""
        self._serve()
        while self._heap and self._heap[0][0] < until:
            time, _, what, tenant = heapq.heappop(self._heap)
            free = self.slots - self.running.total()
            self.idle_s += free * (time - self.now) if any(self._there.values()) else 0.0
            self.now = time
            self._happen(what, tenant)
            self._serve()

    def seconds(self, begin: float, end: float) -> dict[OrganizationId, float]:
        """Slot-seconds of each tenant in a window."""
        found = dict.fromkeys(self.weights, 0.0)
        # Turns are in the order of their begins, and none is longer than the longest.
        first = bisect_left(self.used, begin - self.longest_turn_s, key=lambda one: one.began)
        last = bisect_left(self.used, end, key=lambda one: one.began)
        for one in self.used[first:last]:
            found[one.tenant] += max(min(one.ended, end) - max(one.began, begin), 0.0)
        return found

    def _happen(self, what: str, tenant: OrganizationId) -> None:
        if what == "end":
            self.running[tenant] -= 1
            self.ledger.hold(tenant, self.running[tenant], self.now)
        elif what == "leave":
            self._there[tenant] = False
            self.ledger.rest(tenant, self.now)
        else:
            self._there[tenant] = True
            self.ledger.wait(tenant, self.now)

    def _serve(self) -> None:
        while self.running.total() < self.slots:
            turn = next_turn(self.ledger, self._waiting(), self.now)
            if turn is None:
                return
            self.running[turn.tenant] += 1
            self.ledger.hold(turn.tenant, self.running[turn.tenant], self.now)
            length = min(self.chance.lognormvariate(1.0, 0.8), self.longest_turn_s)
            self.used.append(Used(turn.tenant, self.now, self.now + length))
            self._push(self.now + length, "end", turn.tenant)

    def _waiting(self) -> list[WaitingTurn]:
        """Ranks are drawn: whose are better says nothing of whose turn it is."""
        there = [tenant for tenant, is_there in self._there.items() if is_there]
        return [
            WaitingTurn(tenant, self.chance.randrange(10**6), f"{tenant}-{index}")
            for tenant in there
            for index in range(WAITING)
        ]

    def _push(self, time: float, what: str, tenant: OrganizationId) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (time, self._sequence, what, tenant))
