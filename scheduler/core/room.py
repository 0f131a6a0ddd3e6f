"""How much of the pool gangs hold, want and lack. Plain sums; who is served is `gangs.py`'s matter.

LoRA jobs that share the engines of a base model hold these engines together: they count once, as many
as the largest of them holds. Everything else adds up.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from domain.ids import AttemptId, OrganizationId
from domain.plan import JobPlan, Pool
from domain.states import HostKind
from scheduler.core.fair_share import NOTHING, RESOURCES, Amounts, sandbox_size
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


@dataclass(slots=True)
class Tally:
    """What holdings take together, counted as they come."""

    pool: Pool
    trainers: int = 0
    whole: int = 0
    shared: dict[str, int] = field(default_factory=dict)
    """Engines of each base model that jobs share."""
    sandboxes: int = 0
    sandbox_bytes: int = 0

    @classmethod
    def of(cls, pool: Pool, holdings: Iterable[Holding]) -> "Tally":
        """The tally of these."""
        found = cls(pool)
        for one in holdings:
            found.add(one)
        return found

    def add(self, one: Holding) -> None:
        """Count one more."""
        base = _base(one)
        self.trainers += 1
        self.sandboxes += one.sandboxes
        self.sandbox_bytes += one.sandboxes * _bytes_each(self.pool, one)
        if base is None:
            self.whole += one.engines
        else:
            self.shared[base] = max(self.shared.get(base, 0), one.engines)

    def amounts(self) -> Amounts:
        """All of it."""
        return Amounts(
            trainers=self.trainers,
            engines=self.whole + sum(self.shared.values()),
            sandboxes=self.sandboxes,
            sandbox_bytes=self.sandbox_bytes,
        )

    def needs(self, wanted: Holding) -> Amounts:
        """What this holding would take beside the counted ones: engines of its base are there already."""
        there = self.shared.get(_base(wanted) or "", 0)
        return Amounts(
            trainers=1,
            engines=max(wanted.engines - there, 0),
            sandboxes=wanted.sandboxes,
            sandbox_bytes=wanted.sandboxes * _bytes_each(self.pool, wanted),
        )


def lack(taken: Tally, wanted: Holding) -> Lack | None:
    """The first resource that this holding would overdraw beside those taken; None when it fits."""
    capacities, needs = capacity(taken.pool).values(), taken.needs(wanted).values()
    parts = zip(RESOURCES, capacities, taken.amounts().values(), needs, strict=True)
    for name, most, had, more in parts:
        if had + more > most and (name not in OPTIONAL or most > 0):
            return Lack(name, more, most - had)
    return None


def engines_free(taken: Tally, job: JobRecord) -> int:
    """Engines that the job's gang could hold now, those that others of its base hold already with them."""
    there = taken.shared.get(job.plan.engine_use.base or "", 0)
    return taken.pool.engines - int(taken.amounts().engines) + there


def by_tenant(state: State) -> dict[OrganizationId, Amounts]:
    """What each tenant holds: engines that several share, in parts of what each of them was granted."""
    found = [(job, holding_of(job)) for job in holders(state)]
    seats: dict[str | None, int] = {}
    for _, one in found:
        seats[_base(one)] = seats.get(_base(one), 0) + one.engines
    shared = Tally.of(state.pool, (one for _, one in found)).shared
    tokens = _kv_by_attempt(state)
    amounts: dict[OrganizationId, Amounts] = {}
    for job, one in found:
        tenant, sandboxes = job.plan.organization_id, max(one.sandboxes, job.sandboxes)
        together = shared.get(_base(one) or "")
        amounts[tenant] = amounts.get(tenant, NOTHING) + Amounts(
            trainers=1,
            engines=one.engines if not together else together * one.engines / seats[_base(one)],
            kv_tokens=tokens.get(job.attempt_id, 0),
            sandboxes=sandboxes,
            sandbox_bytes=sandboxes * _bytes_each(state.pool, one),
        )
    return amounts


def shared_capacity(state: State) -> Amounts:
    """What shares are shares of: the pool, and the KV that its engines have told of."""
    return capacity(state.pool) + Amounts(kv_tokens=sum(h.kv_tokens for h in state.hosts.values()))


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
