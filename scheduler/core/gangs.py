"""A gang is granted whole or not at all: one trainer, the engines, sandboxes for one group.

Jobs wait by class of priority, then in the order in which they asked. The first that does not fit now
holds back those behind it, or a large job would starve; one that can never fit is parked with a reason
and holds back nobody.
"""

from typing import Final

from domain.commands import GrantGang, ReleaseGang
from domain.plan import Priority
from domain.states import JobState
from scheduler.core.records import Gang, JobRecord
from scheduler.core.state import Pass, State

CLASSES: Final = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
"""Classes in the order in which they are served."""


def sandboxes_needed(job: JobRecord) -> int:
    """Sandboxes of the job's largest group."""
    plan = job.plan
    evaluated = 0 if plan.evaluation is None else plan.evaluation.rollouts_per_task
    return max(plan.group_size, evaluated)


def never_fits(state: State, job: JobRecord) -> str | None:
    """Why the whole empty pool could not hold the job's gang."""
    pool = state.pool
    room = pool.sandboxes - pool.grading_reserve
    wants = (
        ("trainers", 1, pool.trainers),
        ("engines", job.plan.engines_min, pool.engines),
        ("agent sandboxes", sandboxes_needed(job), room),
    )
    for name, wanted, held in wants:
        if wanted > held:
            return f"never_fits: needs {wanted} {name}, the pool has {held}"
    return None


def missing_now(state: State, job: JobRecord) -> str | None:
    """Which part of the gang is taken by others at the moment."""
    gangs = [other.gang for other in state.jobs.values() if other.gang is not None]
    pool = state.pool
    wants = (
        ("trainers", 1, pool.trainers - len(gangs)),
        ("engines", job.plan.engines_min, pool.engines - sum(g.engines for g in gangs)),
        (
            "agent sandboxes",
            sandboxes_needed(job),
            pool.sandboxes - pool.grading_reserve - sum(g.sandboxes for g in gangs),
        ),
    )
    for name, wanted, free in wants:
        if wanted > free:
            return f"waits for {name}: needs {wanted}, {max(free, 0)} of the pool free"
    return None


def waits_for_gang(job: JobRecord) -> bool:
    """Whether the job is in the queue."""
    return job.gang is None and job.state in (JobState.QUEUED, JobState.RESUMING)


def grant_gangs(run: Pass) -> None:
    """Grant in queue order, then show each waiting job its position and reason if they changed."""
    queue = sorted(
        (job for job in run.state.jobs.values() if waits_for_gang(job)),
        key=lambda job: (CLASSES.index(job.plan.priority), job.arrival, job.plan.job_id),
    )
    position, is_blocked = 0, False
    for job in queue:
        parked = never_fits(run.state, job)
        if parked is not None:
            _show(run, job, parked, None)
            continue
        missing = missing_now(run.state, job)
        if missing is None and not is_blocked:
            _grant(run, job)
            continue
        is_blocked = True
        position += 1
        _show(run, job, missing or "waits for the jobs before it", position)


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
    run.queue_wanted = run.grants_wanted = True


def emit_grant(run: Pass, job: JobRecord) -> None:
    """Ask for the desired rows of the attempt's hosts; the same grant again is harmless."""
    assert job.gang is not None, job.plan.job_id
    run.emit(GrantGang(job_id=job.plan.job_id, attempt_id=job.attempt_id, engines=job.gang.engines))


def _grant(run: Pass, job: JobRecord) -> None:
    taken = sum(o.gang.engines for o in run.state.jobs.values() if o.gang is not None)
    take_gang(run.state, job, min(job.plan.engines_max, run.state.pool.engines - taken))
    if job.state is JobState.QUEUED:
        run.set_state(job, JobState.PROVISIONING)
    elif job.queue_position is not None or job.reason is not None:
        job.queue_position = job.reason = None
        run.say_state(job)
    job.progress_at = run.now
    emit_grant(run, job)
    run.touch(job)


def _show(run: Pass, job: JobRecord, reason: str, position: int | None) -> None:
    if (job.reason, job.queue_position) != (reason, position):
        job.reason, job.queue_position = reason, position
        run.say_state(job)
