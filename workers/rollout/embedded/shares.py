"""Whose turn gets the next slot of an engine that several tenants use: `kv.shares` over its slots.

Ranks order the turns of one tenant; those of two never compare. Whoever got least slot time over its weight
is next, with its own best turn. Weights are those by which the coordinator divides the pool, and a tenant
without one weighs 1 as there. Guarantees are of whole engines: how many of them each tenant may use is the
coordinator's matter, and only rollouts that it placed come to an engine.

Slots are what is shared. Pages are not: where they run out, what rollouts hold whose tools run still goes by
rank, whoever they are of (`admission.py`).
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

from domain.plan import TenantShare
from kv.shares import Account, Ledger
from workers.rollout.embedded.turns import Running

TURN_S: Final = 2.0
"""What a slot that is in use is charged ahead before any turn has ended: about a turn of a small model."""

TURN_SMOOTHING: Final = 0.05
"""Of the mean of turns, which is charged from then on: it follows a change of load in some twenty turns."""

ACCOUNTS_MAX: Final = 64
"""Tenants remembered; those that say no more than a new one would are dropped above it,
and those with a weight of their own stay."""


class Waiter(Protocol):
    """Somebody in a queue; `tenant` is empty where nobody waits for a slot."""

    @property
    def tenant(self) -> str:
        """Whose turn it is."""
        ...


W = TypeVar("W", bound=Waiter)


class SlotShares:
    """Slot time by tenant. `now` never goes back."""

    def __init__(self, tenants: Iterable[TenantShare] = ()) -> None:
        """`tenants` are those with a weight of their own."""
        self._ledger: Ledger[str] = Ledger(TURN_S)
        self._weights = {str(one.organization_id): one.weight for one in tenants}

    def hold(self, running: Sequence[Running], now: float) -> None:
        """These turns have slots from now on."""
        held = Counter(one.ticket.request.tenant for one in running)
        accounts = self._ledger.accounts
        self._meet(held)
        for tenant in sorted({*held, *accounts}):
            if self._ledger.account(tenant).held != held[tenant]:
                self._ledger.hold(tenant, held[tenant], now)
        if len(accounts) > ACCOUNTS_MAX:
            self._ledger.forget_idle(now)

    def note_turn(self, seconds: float) -> None:
        """A turn ended so long after its first slot."""
        self._ledger.horizon_s += TURN_SMOOTHING * (seconds - self._ledger.horizon_s)

    def interleaved(self, ordered: Sequence[W], slots: int, now: float) -> list[W]:
        """The same queue with its waiting places given out by tenant: so many, then as they stand.

        Places of nobody's turn stay where they are, and so does the order inside a tenant.
        """
        queues: dict[str, deque[W]] = {}
        for one in ordered:
            if one.tenant:
                queues.setdefault(one.tenant, deque()).append(one)
        self._meet(queues)
        for tenant in sorted(self._ledger.accounts):
            if tenant not in queues:
                self._ledger.rest(tenant, now)
        for tenant in sorted(queues):
            self._ledger.wait(tenant, now)
        if len(queues) < 2:
            return list(ordered)
        turns = self._in_turn(queues, slots, now)
        taken = {id(one) for one in turns}
        turns += [one for one in ordered if one.tenant and id(one) not in taken]
        rest = iter(turns)
        return [next(rest) if one.tenant else one for one in ordered]

    def _meet(self, tenants: Iterable[str]) -> None:
        """Open an account for who has none."""
        for tenant in tenants:
            if tenant not in self._ledger.accounts:
                self._ledger.accounts[tenant] = Account(self._weights.get(tenant, 1.0))

    def _in_turn(self, queues: dict[str, deque[W]], slots: int, now: float) -> list[W]:
        granted: Counter[str] = Counter()
        turns: list[W] = []
        while len(turns) < slots and (open_ := sorted(t for t, queue in queues.items() if queue)):
            tenant = min(open_, key=lambda one: (self._due(one, granted[one], now), one))
            granted[tenant] += 1
            turns.append(queues[tenant].popleft())
        return turns

    def _due(self, tenant: str, more: int, now: float) -> float:
        held = self._ledger.account(tenant).held + more
        return self._ledger.due(tenant, now, held)
