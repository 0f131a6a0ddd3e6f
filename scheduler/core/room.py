"""How much of the pool gangs hold, want and lack. Plain sums; who is served is `gangs.py`'s matter.

LoRA jobs that share the engines of a base model hold these engines together: they count once, as many
as the largest of them holds. Everything else adds up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from domain.ids import AttemptId, OrganizationId
from domain.plan import JobPlan, Pool
from domain.states import HostKind
from scheduler.core.fair_share import NOTHING, RESOURCES, Amounts, dominant_share, sandbox_size
from scheduler.core.records import JobRecord
from scheduler.core.state import State

WORDS: Final = {"sandboxes": "agent sandboxes", "sandbox_bytes": "bytes of agent sandboxes"}
"""What people read for a resource whose field is named otherwise."""

OPTIONAL: Final = frozenset({"kv_tokens", "sandbox_bytes"})
"""Resources that a pool may leave undeclared: nothing is refused for them then."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one job holds of the pool, or would hold."""

    plan: JobPlan
    engines: int
    sandboxes: int


@dataclass(frozen=True, slots=True)
class Lack:
    """A resource of which a gang needs more than there is."""

    resource: str
    needs: float
    free: float

    @property
    def noun(self) -> str:
        """The resource as people read it."""
        return WORDS.get(self.resource, self.resource)


def sandboxes_needed(job: JobRecord) -> int:
    """Sandboxes of the job's largest group."""
    plan = job.plan
    evaluated = 0 if plan.evaluation is None else plan.evaluation.rollouts_per_task
    return max(plan.group_size, evaluated)


def least(job: JobRecord) -> Holding:
    """The smallest gang that the job can run with."""
    return Holding(job.plan, job.plan.engines_min, sandboxes_needed(job))


def holding_of(job: JobRecord) -> Holding:
    """What the job holds, or the least that it waits for."""
    if job.gang is None:
        return least(job)
    return Holding(job.plan, job.gang.engines, job.gang.sandboxes)


def holders(state: State) -> list[JobRecord]:
    """Jobs with a gang, in the order in which the core knows them."""
    return [job for job in state.jobs.values() if job.gang is not None]


def capacity(pool: Pool) -> Amounts:
    """What the pool grants to gangs; the grading reserve is no part of it."""
    return Amounts(
        trainers=pool.trainers,
        engines=pool.engines,
        sandboxes=pool.sandboxes - pool.grading_reserve,
        sandbox_bytes=pool.sandbox_bytes,
    )


def held(pool: Pool, holdings: Iterable[Holding]) -> Amounts:
    """What these hold together."""
    found = list(holdings)
    shared: dict[str, int] = {}
    for one in found:
        base = one.plan.engine_use.base
        if base is not None:
            shared[base] = max(shared.get(base, 0), one.engines)
    whole = sum(one.engines for one in found if one.plan.engine_use.base is None)
    return Amounts(
        trainers=len(found),
        engines=whole + sum(shared.values()),
        sandboxes=sum(one.sandboxes for one in found),
        sandbox_bytes=sum(one.sandboxes * _bytes_each(pool, one) for one in found),
    )


def lack(pool: Pool, holdings: Iterable[Holding], wanted: Holding) -> Lack | None:
    """The first resource that this holding would overdraw beside those; None when it fits."""
    beside = list(holdings)
    before, after = held(pool, beside).values(), held(pool, [*beside, wanted]).values()
    for name, most, had, has in zip(RESOURCES, capacity(pool).values(), before, after, strict=True):
        if has > most and (name not in OPTIONAL or most > 0):
            return Lack(name, has - had, most - had)
    return None


def engines_free(state: State, job: JobRecord) -> int:
    """Engines that the job's gang could hold now, those that others of its base hold already with them."""
    holdings = [holding_of(one) for one in holders(state)]
    base = job.plan.engine_use.base
    of_base = [one.engines for one in holdings if base is not None and base == _base(one)]
    taken = held(state.pool, holdings).engines
    return state.pool.engines - int(taken) + max(of_base, default=0)


def by_tenant(state: State) -> dict[OrganizationId, Amounts]:
    """What each tenant holds: engines that several share, in parts of what each of them was granted."""
    found = [(job, holding_of(job)) for job in holders(state)]
    seats: dict[str | None, int] = {}
    for _, one in found:
        seats[_base(one)] = seats.get(_base(one), 0) + one.engines
    tokens = _kv_by_attempt(state)
    amounts: dict[OrganizationId, Amounts] = {}
    for job, one in found:
        tenant, sandboxes = job.plan.organization_id, max(one.sandboxes, job.sandboxes)
        peers = [other.engines for _, other in found if _base(other) == _base(one)]
        is_shared = _base(one) is not None and one.engines > 0
        amounts[tenant] = amounts.get(tenant, NOTHING) + Amounts(
            trainers=1,
            engines=max(peers) * one.engines / seats[_base(one)] if is_shared else one.engines,
            kv_tokens=tokens.get(job.attempt_id, 0),
            sandboxes=sandboxes,
            sandbox_bytes=sandboxes * _bytes_each(state.pool, one),
        )
    return amounts


def shares(state: State, amounts: dict[OrganizationId, Amounts]) -> dict[OrganizationId, float]:
    """Dominant share of each tenant."""
    most = capacity(state.pool) + Amounts(kv_tokens=sum(h.kv_tokens for h in state.hosts.values()))
    return {tenant: dominant_share(one, most) for tenant, one in amounts.items()}


def _base(one: Holding) -> str | None:
    return one.plan.engine_use.base


def _bytes_each(pool: Pool, one: Holding) -> int:
    return sandbox_size(pool, one.plan) if pool.sandbox_bytes else 0


def _kv_by_attempt(state: State) -> dict[AttemptId | None, int]:
    tokens: dict[AttemptId | None, int] = {}
    for host in state.hosts.values():
        if host.kind is HostKind.ENGINE:
            tokens[host.attempt_id] = tokens.get(host.attempt_id, 0) + host.kv_held
    return tokens
