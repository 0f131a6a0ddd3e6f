"""Weighted dominant-resource fairness between tenants (Ghodsi et al. 2011), over time.

A tenant's dominant share is its largest share of any one resource of the pool. What decides is the
time integral of it over the tenant's weight (dominant-share-seconds, as in Ghodsi et al. 2012), kept by
the virtual-time ledger of `kv.shares`: equal over time while tenants wait, no credit for idleness, no
debt for what was borrowed. Within its guarantee a tenant goes before all that is borrowed.

Users: `gangs.py` asks whose gang is granted next, `forks.py` whose sandboxes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from domain.ids import JobId, OrganizationId
from domain.plan import JobPlan, Pool, TenantShare
from kv.shares import Ledger

if TYPE_CHECKING:
    from scheduler.core.records import JobRecord
    from scheduler.core.state import State

GANG_HORIZON_S: Final = 600.0
"""What a tenant holds is charged for this much longer when the next gang is granted: a gang is held for
minutes at least, and within one pass only this keeps grants alternating."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of what tenants share. KV is in tokens: the size of a page cancels in every share."""

    trainers: float = 0
    engines: float = 0
    kv_tokens: float = 0
    sandboxes: float = 0
    sandbox_bytes: float = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        both = zip(self.values(), other.values(), strict=True)
        return Amounts(*(mine + its for mine, its in both))

    def values(self) -> tuple[float, ...]:
        """In the order of the fields."""
        return (
            self.trainers,
            self.engines,
            self.kv_tokens,
            self.sandboxes,
            self.sandbox_bytes,
        )


RESOURCES: Final = tuple(one.name for one in fields(Amounts))
"""Names of what tenants share, in the order of `Amounts.values`."""

NOTHING: Final = Amounts()


@dataclass(slots=True)
class Tenancy:
    """Soft state of fairness between tenants; a new leader starts with everybody equal."""

    ledger: Ledger[OrganizationId] = field(default_factory=lambda: Ledger(GANG_HORIZON_S))
    overtaken: dict[JobId, int] = field(default_factory=dict)
    """How many jobs of other tenants started while this one waited for more room."""


def dominant_share(held: Amounts, capacity: Amounts) -> float:
    """The largest share of any resource; resources that the pool does not declare do not count."""
    both = zip(held.values(), capacity.values(), strict=True)
    return max((mine / most for mine, most in both if most > 0), default=0.0)


def share_of(pool: Pool, tenant: OrganizationId) -> TenantShare:
    """The tenant's weight and guarantee."""
    named = (one for one in pool.tenants if one.organization_id == tenant)
    return next(named, TenantShare(tenant))


def is_guaranteed(share: TenantShare, held: Amounts) -> bool:
    """Whether a tenant that holds this much is within its guarantee."""
    promised = (share.trainers, share.engines, share.sandboxes)
    return all(
        mine <= most
        for mine, most in zip((held.trainers, held.engines, held.sandboxes), promised, strict=True)
    )


def observe(
    tenancy: Tenancy,
    pool: Pool,
    shares: Mapping[OrganizationId, float],
    waiting: Iterable[OrganizationId],
    now: float,
) -> None:
    """Charge every tenant for what it held until now; `shares` are the dominant shares from now on."""
    ledger, waits = tenancy.ledger, sorted(set(waiting))
    for share in pool.tenants:
        ledger.account(share.organization_id).weight = share.weight
    for tenant in sorted({*ledger.accounts, *shares}):
        ledger.hold(tenant, shares.get(tenant, 0.0), now)
    for tenant in sorted(ledger.accounts):
        if tenant not in waits:
            ledger.rest(tenant, now)
    for tenant in waits:
        ledger.wait(tenant, now)
    ledger.forget_idle(now)


def sandbox_size(pool: Pool, plan: JobPlan) -> int:
    """Bytes of one of the job's sandboxes; 1 where the pool only counts them."""
    return plan.sandbox_bytes if pool.sandbox_bytes else 1


SandboxKey = tuple[float, int, int, JobId]


def sandbox_key(state: "State") -> "Callable[[JobRecord], SandboxKey]":
    """Order in which jobs get the next sandboxes: least weighted holding of the tenant, then of the job.

    Sandboxes come and go within minutes, so what is held now decides, without a past.
    """
    weights = {one.organization_id: one.weight for one in state.pool.tenants}
    held: dict[OrganizationId, float] = {}
    for job in state.jobs.values():
        tenant = job.plan.organization_id
        size = sandbox_size(state.pool, job.plan)
        held[tenant] = held.get(tenant, 0.0) + job.sandboxes * size / weights.get(tenant, 1.0)
    return lambda job: (
        held.get(job.plan.organization_id, 0.0),
        job.sandboxes,
        job.arrival,
        job.plan.job_id,
    )
