"""Which engine serves which weights, and what happens when a sync does not succeed.

One sync is outstanding per engine. A failed one is retried a bounded number of times, an unanswered
one passes a deadline; then the engine is replaced. An engine never skips a version that an unfinished
evaluation is pinned to.
"""

from typing import Final

from domain.commands import ReplaceHost, SyncEngine
from domain.policy import PolicyRef
from scheduler.core.records import EvaluationRun, HostRecord, HostState, JobRecord
from scheduler.core.state import Pass

SYNC_DEADLINE_S: Final = 120.0
"""A sync that is not confirmed by then leaves the engine in an unknown state: it is replaced."""

SYNC_FAILURES_MAX: Final = 3
"""Failed syncs of one engine before it is replaced; the first may be a torn read."""

VERSIONS_BEHIND_MAX: Final = 1
"""An engine further behind the trainer gets no new training placement."""


def is_current(job: JobRecord, engine: HostRecord) -> bool:
    """Whether training rollouts may be placed on this engine."""
    return engine.version >= 0 and job.committed - engine.version <= VERSIONS_BEHIND_MAX


def sync_engines(run: Pass, job: JobRecord) -> None:
    """Send each engine of the attempt to the version it should serve."""
    if not job.weights_are_old or job.policy is None or job.gang is None:
        return
    job.weights_are_old = False
    for engine in run.state.engines_of(job):
        if engine.syncing is not None:
            continue
        pinning = _pinning(job, engine)
        if pinning is not None and pinning.step == engine.version:
            if job.committed > engine.version and pinning.deferring_since is None:
                pinning.deferring_since = run.now
            continue
        target = job.policy if pinning is None or pinning.policy is None else pinning.policy
        if target.version > engine.version:
            _sync(run, engine, target)


def confirm_sync(run: Pass, job: JobRecord, engine: HostRecord, version: int) -> None:
    """The probe matched: the engine serves this version."""
    engine.version = version
    engine.sync_failures = 0
    run.state.note_hosts(job.attempt_id)
    if engine.syncing is not None and version >= engine.syncing:
        engine.syncing = None
    run.touch(job)
    run.grants_wanted = True


def fail_sync(run: Pass, job: JobRecord, engine: HostRecord, cause: str) -> None:
    """Try again, or replace an engine that keeps failing."""
    engine.syncing = None
    engine.sync_failures += 1
    job.weights_are_old = True
    run.touch(job)
    if engine.sync_failures >= SYNC_FAILURES_MAX:
        replace_host(run, engine, f"sync_failed: {cause}")


def check_deadlines(run: Pass, job: JobRecord) -> None:
    """Replace engines whose sync is overdue, and repeat a replacement that nobody answered."""
    for host_id in job.epochs:
        engine = run.state.hosts.get(host_id)
        if engine is None or run.now - engine.sync_asked_at <= SYNC_DEADLINE_S:
            continue
        if engine.state is HostState.REPLACING or engine.syncing is not None:
            replace_host(run, engine, "sync_deadline")


def replace_host(run: Pass, host: HostRecord, cause: str) -> None:
    """Ask the keeper for a new process; the loss follows as an event."""
    host.state, host.syncing, host.sync_asked_at = HostState.REPLACING, None, run.now
    run.state.note_hosts(host.attempt_id)
    run.emit(ReplaceHost(host_id=host.host_id, epoch=host.epoch, cause=cause))


def all_synced(run: Pass, job: JobRecord) -> bool:
    """Whether every live engine, and at least one, serves the newest policy."""
    engines = run.state.engines_of(job)
    newest = -1 if job.policy is None else job.policy.version
    return bool(engines) and all(engine.version == newest for engine in engines)


def _pinning(job: JobRecord, engine: HostRecord) -> EvaluationRun | None:
    """The unfinished evaluation that this engine still has to serve, oldest first."""
    for run in job.evaluations:
        may_sync = run.policy is not None and run.step > engine.version
        if not run.is_abandoned and (may_sync or run.step == engine.version):
            return run
    return None


def _sync(run: Pass, engine: HostRecord, policy: PolicyRef) -> None:
    engine.syncing, engine.sync_asked_at = policy.version, run.now
    run.emit(SyncEngine(host_id=engine.host_id, epoch=engine.epoch, policy=policy))
