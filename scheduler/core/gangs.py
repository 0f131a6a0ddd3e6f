"""A gang is granted whole or not at all: one trainer, the engines, sandboxes for one group.

    never fits -> parked | line: guaranteed first, then the tenant that got least, then its first job

Inside a tenant jobs wait by class of priority, then in the order in which they asked, and the first
that does not fit holds back those behind it. Jobs of other tenants may pass one that does not fit, at
most `OVERTAKEN_MAX` of them, so that room is lent and a large job never starves. A job that waits
within its tenant's guarantee is not passed by borrowers: they give gangs back for it, or none of them
does when that would not be enough. One that can never fit is parked and holds back nobody.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from domain.commands import GrantGang, ReleaseGang
from domain.ids import JobId, OrganizationId
from domain.plan import Priority
from domain.states import Desired, JobState
from scheduler.core import fair_share, forecast, room
from scheduler.core.fair_share import NOTHING, Amounts
from scheduler.core.records import Gang, JobRecord
from scheduler.core.room import sandboxes_needed
from scheduler.core.state import Pass, State

CLASSES: Final = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
"""Classes in the order in which they are served."""

OVERTAKEN_MAX: Final = 8
"""Jobs of other tenants that may start before one that does not fit yet: what it cannot use is lent,
and what it waits for is bounded."""

FORECAST_MAX: Final = 32
"""Places of the line whose start is predicted: errors add up from place to place, and so does the work."""

FAR: Final = forecast.Start(None, f"more than {FORECAST_MAX} jobs wait before it")

YIELDS: Final = "yields to a job within its organization's guarantee"
"""Reason of a job that drains because it borrowed; it queues again by itself."""

YIELDING_STATES: Final = frozenset({JobState.PROVISIONING, JobState.RUNNING})
"""Jobs in these states can be asked to yield; the others are on their way out or in."""

LEAVING_STATES: Final = frozenset({JobState.PAUSING, JobState.CANCELLING})
"""Jobs in these states give their gang back soon."""


def engines_held(state: State) -> float:
    """Engines of the pool that gangs hold."""
    return _taken(state).amounts().engines


def never_fits(state: State, job: JobRecord) -> str | None:
    """Why the whole empty pool could not hold the job's gang."""
    lack = room.lack(room.Tally(state.pool), room.least(job))
    if lack is None:
        return None
    return f"never_fits: needs {lack.needs:g} {lack.noun}, the pool has {lack.free:g}"


def missing_now(taken: room.Tally, job: JobRecord) -> str | None:
    """Which part of the gang is taken by others at the moment."""
    lack = room.lack(taken, room.least(job))
    if lack is None:
        return None
    return f"waits for {lack.noun}: needs {lack.needs:g}, {max(lack.free, 0):g} of the pool free"


def waits_for_gang(job: JobRecord) -> bool:
    """Whether the job is in the queue."""
    return job.gang is None and job.state in (JobState.QUEUED, JobState.RESUMING)


def grant_gangs(run: Pass) -> None:
    """Grant in line order, then show each waiting job its position, reason and predicted start."""
    line = _line_up(run)
    while (job := line.take_first()) is not None:
        missing = missing_now(line.taken, job)
        if missing is None and line.may_pass(job):
            _grant(run, job, line.engines_for(job))
            line.note_granted(job)
            continue
        line.blocked.append((job, missing or "waits for the jobs before it"))
        if missing is not None and job.plan.job_id in line.guaranteed:
            _reclaim(run, line)
    _show_line(run, line)


def take_gang(state: State, job: JobRecord, engines: int) -> None:
    """The attempt holds its part of the pool from now on."""
    job.gang = Gang(engines=engines, sandboxes=sandboxes_needed(job))


def release_gang(run: Pass, job: JobRecord) -> None:
    """Give everything back; hosts of the attempt leave the state, their epochs stay known."""
    run.emit(ReleaseGang(job_id=job.plan.job_id, attempt_id=job.attempt_id))
    for host_id in [h.host_id for h in run.state.hosts.values() if h.attempt_id == job.attempt_id]:
        del run.state.hosts[host_id]
    run.state.note_hosts(job.attempt_id)
    # Their next grant starts higher epochs; a late loss of these is no failed start of those.
    job.lost_epochs.update(job.epochs)
    job.gang = None
    job.pace.stop()
    run.state.tenancy.overtaken.pop(job.plan.job_id, None)
    run.queue_wanted = run.grants_wanted = True


def emit_grant(run: Pass, job: JobRecord) -> None:
    """Ask for the desired rows of the attempt's hosts; the same grant again is harmless."""
    assert job.gang is not None, job.plan.job_id
    run.emit(GrantGang(job_id=job.plan.job_id, attempt_id=job.attempt_id, engines=job.gang.engines))


@dataclass(slots=True)
class _Line:
    """The queue of one pass. Jobs that are taken count as granted when the next one is chosen."""

    run: Pass
    queues: dict[OrganizationId, deque[JobRecord]]
    amounts: dict[OrganizationId, Amounts]
    capacity: Amounts
    taken: room.Tally
    """Gangs that are really held."""
    gangs: dict[OrganizationId, room.Tally] = field(default_factory=dict)
    """Of each tenant. A guarantee is of gangs: sandboxes that a running job borrowed do not use it up."""
    blocked: list[tuple[JobRecord, str]] = field(default_factory=list)
    """Jobs that go on waiting, in line order, each with its reason."""
    guaranteed: dict[JobId, None] = field(default_factory=dict)
    """Taken jobs that are within their tenant's guarantee."""

    def take_first(self) -> JobRecord | None:
        """The job that is served next, or counted as served when it has to wait."""
        heads = [queue[0] for queue in self.queues.values() if queue]
        if not heads:
            return None
        job = min(heads, key=self._key)
        tenant = job.plan.organization_id
        if self._is_guaranteed(job):
            self.guaranteed[job.plan.job_id] = None
        wanted = self.gangs_of(job).needs(room.least(job))
        self.amounts[tenant] = self.amounts.get(tenant, NOTHING) + wanted
        self.gangs_of(job).add(room.least(job))
        self.queues[tenant].popleft()
        return job

    def may_pass(self, job: JobRecord) -> bool:
        """Whether the job may start although those before it wait."""
        is_guaranteed = job.plan.job_id in self.guaranteed
        overtaken = self.run.state.tenancy.overtaken
        return all(
            other.plan.organization_id != job.plan.organization_id
            and (is_guaranteed or other.plan.job_id not in self.guaranteed)
            and overtaken.get(other.plan.job_id, 0) < OVERTAKEN_MAX
            for other, _ in self.blocked
        )

    def note_granted(self, job: JobRecord) -> None:
        """The job started; those before it that still wait were overtaken once more."""
        self.taken.add(room.holding_of(job))
        overtaken = self.run.state.tenancy.overtaken
        overtaken.pop(job.plan.job_id, None)
        for other, _ in self.blocked:
            overtaken[other.plan.job_id] = overtaken.get(other.plan.job_id, 0) + 1

    def engines_for(self, job: JobRecord) -> int:
        """As many as it can use, but none that the first jobs of other tenants need to start."""
        least = job.plan.engines_min
        if self.blocked:
            return least
        owed = sum(queue[0].plan.engines_min for queue in self._other_queues(job))
        free = room.engines_free(self.taken, job)
        return max(min(job.plan.engines_max, free - owed), least)

    def _other_queues(self, job: JobRecord) -> list[deque[JobRecord]]:
        mine = job.plan.organization_id
        return [queue for tenant, queue in self.queues.items() if queue and tenant != mine]

    def _key(self, job: JobRecord) -> tuple[bool, float, int, JobId]:
        tenant = job.plan.organization_id
        share = fair_share.dominant_share(self.amounts.get(tenant, NOTHING), self.capacity)
        due = self.run.state.tenancy.ledger.due(tenant, self.run.now, share)
        return not self._is_guaranteed(job), due, job.arrival, job.plan.job_id

    def _is_guaranteed(self, job: JobRecord) -> bool:
        share = fair_share.share_of(self.run.state.pool, job.plan.organization_id)
        gangs = self.gangs_of(job)
        return share.engines > 0 and fair_share.is_guaranteed(
            share, gangs.amounts() + gangs.needs(room.least(job))
        )

    def gangs_of(self, job: JobRecord) -> room.Tally:
        """Gangs of the job's tenant, those counted as granted with them."""
        return self.gangs.setdefault(job.plan.organization_id, room.Tally(self.run.state.pool))


def _line_up(run: Pass) -> _Line:
    """Charge every tenant until now, park what can never fit, and queue the rest."""
    waiting = sorted(
        (job for job in run.state.jobs.values() if waits_for_gang(job)),
        key=lambda job: (CLASSES.index(job.plan.priority), job.arrival, job.plan.job_id),
    )
    queues: dict[OrganizationId, deque[JobRecord]] = {}
    for job in waiting:
        parked = never_fits(run.state, job)
        if parked is None:
            queues.setdefault(job.plan.organization_id, deque()).append(job)
        else:
            _show(run, job, (parked, None), forecast.Start(None, parked))
    amounts, most = room.by_tenant(run.state), room.shared_capacity(run.state)
    shares = {tenant: fair_share.dominant_share(one, most) for tenant, one in amounts.items()}
    fair_share.observe(run.state.tenancy, run.state.pool, shares, queues, run.now)
    line = _Line(run, queues, amounts, most, _taken(run.state))
    for job in room.holders(run.state):
        line.gangs_of(job).add(room.holding_of(job))
    return line


def _taken(state: State) -> room.Tally:
    return room.Tally.of(state.pool, map(room.holding_of, room.holders(state)))


def _grant(run: Pass, job: JobRecord, engines: int) -> None:
    take_gang(run.state, job, engines)
    job.start = forecast.NO_START
    if job.state is JobState.QUEUED:
        run.set_state(job, JobState.PROVISIONING)
    elif job.queue_position is not None or job.reason is not None:
        job.queue_position = job.reason = None
        run.say_state(job)
    job.progress_at = run.now
    emit_grant(run, job)
    run.touch(job)


def _reclaim(run: Pass, line: _Line) -> None:
    """Make borrowers yield until the waiting guaranteed jobs fit; nobody, when that is not enough."""
    pool = run.state.pool
    promised = [room.least(job) for job, _ in line.blocked if job.plan.job_id in line.guaranteed]
    staying = [job for job in room.holders(run.state) if job.state not in LEAVING_STATES]
    yielding: list[JobRecord] = []
    while not _fit(run, staying, promised):
        victim = _borrower(run, staying)
        if victim is None:
            return
        staying.remove(victim)
        yielding.append(victim)
    for victim in list(yielding):
        if _fit(run, [*staying, victim], promised):
            staying.append(victim)
            yielding.remove(victim)
    for victim in yielding:
        run.set_state(victim, JobState.PAUSING, YIELDS)
        victim.draining_since, victim.is_drained = run.now, False
        run.touch(victim)
    assert pool.tenants or not yielding, "somebody yielded without a guarantee"


def _fit(run: Pass, staying: list[JobRecord], promised: list[room.Holding]) -> bool:
    held = [room.holding_of(job) for job in staying]
    taken = room.Tally.of(run.state.pool, [*held, *promised[:-1]])
    return room.lack(taken, promised[-1]) is None


def _borrower(run: Pass, staying: list[JobRecord]) -> JobRecord | None:
    """Who yields first: of the tenant furthest ahead, its lowest class, its newest job."""
    pool, ledger = run.state.pool, run.state.tenancy.ledger
    found = []
    for job in staying:
        tenant = job.plan.organization_id
        mine = [room.holding_of(one) for one in staying if one.plan.organization_id == tenant]
        held = room.Tally.of(pool, mine).amounts()
        is_asked = job.desired is Desired.RUN and job.pause_wanted is None
        if job.state not in YIELDING_STATES or not is_asked:
            continue
        if not fair_share.is_guaranteed(fair_share.share_of(pool, tenant), held):
            rank = (ledger.due(tenant, run.now), CLASSES.index(job.plan.priority), job.arrival)
            found.append((rank, job.plan.job_id, job))
    return max(found, default=(None, None, None), key=lambda one: one[:2])[2]


def _show_line(run: Pass, line: _Line) -> None:
    """Tell every waiting job where it stands."""
    jobs = run.state.jobs
    held = [forecast.Holder(job.plan.job_id, _ends_at(run, job)) for job in room.holders(run.state)]

    def fits(job_id: JobId, holding: tuple[JobId, ...]) -> bool:
        beside = [room.holding_of(jobs[one]) for one in holding]
        return room.lack(room.Tally.of(run.state.pool, beside), room.least(jobs[job_id])) is None

    first = [job for job, _ in line.blocked[:FORECAST_MAX]]
    waiting = [(job.plan.job_id, _runs_s(run, job)) for job in first]
    starts = forecast.starts(waiting, held, run.now, fits) if waiting else {}
    for position, (job, reason) in enumerate(line.blocked, start=1):
        _show(run, job, (reason, position), starts.get(job.plan.job_id, FAR))


def _runs_s(run: Pass, job: JobRecord) -> float | None:
    return job.pace.remaining_s(job.plan.max_steps - job.committed, run.now)


def _ends_at(run: Pass, job: JobRecord) -> float | None:
    if job.state in LEAVING_STATES:
        return max(job.draining_since + job.plan.drain_s, run.now)
    runs_s = _runs_s(run, job)
    return None if runs_s is None else run.now + runs_s


def _show(run: Pass, job: JobRecord, place: tuple[str, int | None], start: forecast.Start) -> None:
    if (job.reason, job.queue_position) == place and not start.moved(job.start, run.now):
        return
    job.reason, job.queue_position = place
    job.start = start
    run.say_state(job)
