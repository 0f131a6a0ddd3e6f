"""Shares of tenants on one resource that several of them use at once, in resource-seconds.

Start-time fair queueing (Goyal, Vin, Cheng 1996) for service whose length nobody knows beforehand:
each tenant's account is what it got so far over its weight, and whoever got least is next. A tenant
that waits again after it did not is lifted to the least account of those that wait, so that idleness
earns nothing. What is in use now counts for `horizon_s` more, or the first to choose would take
everything before its account has moved.

Used by shared engines for their slots (`next_turn`), by the core for gangs and for time slices.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from domain.ids import OrganizationId

Party = TypeVar("Party", bound=str)
"""Who shares: tenants, or the jobs of whole engines that are taken in turns. Ties end in this id."""


@dataclass(slots=True)
class Account:
    """What one party got of the resource."""

    weight: float = 1.0
    guaranteed: float = 0.0
    """Amount of the resource that nobody else takes while the party waits for it."""
    used: float = 0.0
    """Resource-seconds until `at`, those that a lift gave as if used among them."""
    held: float = 0.0
    at: float = 0.0
    is_waiting: bool = False

    def __post_init__(self) -> None:
        assert self.weight > 0, self.weight

    def attained(self, now: float) -> float:
        """Resource-seconds over weight, what is in use now counted until this moment."""
        return (self.used + self.held * (now - self.at)) / self.weight


@dataclass(slots=True)
class Ledger(Generic[Party]):
    """Accounts of all parties to one resource. `now` never goes back."""

    horizon_s: float
    """Time for which what is in use now is charged in advance: about how long it will stay in use."""
    accounts: dict[Party, Account] = field(default_factory=dict)
    virtual: float = 0.0
    """The least account of those that waited last; never falls."""

    def account(self, party: Party) -> Account:
        """The party's account; a new one weighs 1 and is guaranteed nothing."""
        return self.accounts.setdefault(party, Account())

    def wait(self, party: Party, now: float) -> None:
        """The party wants more than it has; what it did not want until now is not made good."""
        account = self.account(party)
        if account.is_waiting:
            return
        floor = self._advance(now)
        account.is_waiting = True
        lift = floor - account.attained(now)
        if lift > 0:
            account.used += lift * account.weight

    def rest(self, party: Party, now: float) -> None:
        """The party has all that it wants."""
        self._advance(now)
        self.account(party).is_waiting = False

    def hold(self, party: Party, amount: float, now: float) -> None:
        """The party uses this amount from now on."""
        account = self.account(party)
        account.used += account.held * max(now - account.at, 0.0)
        account.at, account.held = now, amount

    def charge(self, party: Party, seconds: float) -> None:
        """Resource-seconds that are not held over time: the cost of a weight swap, a correction."""
        self.account(party).used += seconds

    def due(self, party: Party, now: float, held: float | None = None) -> float:
        """What the party got over its weight, with `horizon_s` of what it holds, or would hold."""
        account = self.account(party)
        ahead = (account.held if held is None else held) * self.horizon_s / account.weight
        return account.attained(now) + ahead

    def next_of(self, parties: Iterable[Party], amount: float, now: float) -> Party | None:
        """Whose wish for this amount is served next: within a guarantee first, then who got least."""
        return min(
            parties,
            key=lambda party: (not self.is_within(party, amount), self.due(party, now), party),
            default=None,
        )

    def is_within(self, party: Party, amount: float) -> bool:
        """Whether this much more is still within the party's guarantee."""
        account = self.account(party)
        return account.held + amount <= account.guaranteed

    def forget_idle(self, now: float) -> None:
        """Drop accounts that say no more than a new one would, which the first wait lifts as far."""
        self._advance(now)
        for party in sorted(self.accounts):
            account = self.accounts[party]
            is_plain = account.weight == 1 and account.guaranteed == 0
            is_idle = is_plain and not account.is_waiting and account.held == 0
            if is_idle and account.attained(now) <= self.virtual:
                del self.accounts[party]

    def _advance(self, now: float) -> float:
        """The virtual time: nobody waits, so everybody has caught up with whoever got most."""
        waiting = [a.attained(now) for a in self.accounts.values() if a.is_waiting]
        others = [a.attained(now) for a in self.accounts.values()]
        now_virtual = min(waiting) if waiting else max(others, default=0.0)
        self.virtual = max(self.virtual, now_virtual)
        return self.virtual


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A turn that waits for a slot of a shared engine."""

    tenant: OrganizationId
    rank: int
    """Of the coordinator; ranks of two tenants never compare."""
    turn_id: str


def next_turn(
    ledger: Ledger[OrganizationId], waiting: Sequence[WaitingTurn], now: float
) -> WaitingTurn | None:
    """Which turn gets the slot that is free: first the tenant is chosen, then its best rank.

    So no rank, however high, takes a slot that another tenant is owed. Slots in use are kept by the
    caller with `Ledger.hold`; a running turn is never interrupted for another tenant.
    """
    tenants = sorted({turn.tenant for turn in waiting})
    tenant = ledger.next_of(tenants, 1, now)
    mine = (turn for turn in waiting if turn.tenant == tenant)
    return min(mine, key=lambda turn: (turn.rank, turn.turn_id), default=None)
