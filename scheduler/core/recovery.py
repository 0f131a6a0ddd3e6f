"""A new leader's start: the state is rebuilt from Postgres, then hosts join or are lost.

Until the fate of a claimed host is known, what it may hold is not placed anew: open rollouts are
`unsettled`. `hosts.settle_fates` decides them as the snapshots and losses arrive.
"""

from collections import deque

from domain.commands import ReleaseGang
from domain.events import RestoredGroup, RestoredHost, RestoredJob, RestoredRollout, StateRestored
from domain.ids import AttemptId, HostId, JobId, index_of, ordinal_of
from domain.states import Desired, HostKind, JobState
from scheduler.core import evaluation, gangs, grading, hosts, lifecycle, roster
from scheduler.core.fair_share import Tenancy
from scheduler.core.holdings import take_sandbox
from scheduler.core.node_rooms import NodeRooms
from scheduler.core.records import (
    Checkpointing,
    EvaluationRun,
    GroupPhase,
    GroupRecord,
    HostRecord,
    HostState,
    JobRecord,
    RolloutRecord,
    SandboxState,
)
from scheduler.core.state import Pass

GANG_STATES = frozenset(
    {JobState.PROVISIONING, JobState.RUNNING, JobState.PAUSING, JobState.CANCELLING}
)
"""States whose jobs hold a gang. A resuming one holds the gang whose rows are up, and queues without:
a pause gives its rows back before the job is shown as resuming. Hosts whose joining was refused as
foreign never join again while they live, so rows that are up belong to a gang or are given back."""


def restore(run: Pass, event: StateRestored) -> None:
    """Replace the state by what Postgres says."""
    state = run.state
    state.jobs.clear()
    state.attempts.clear()
    state.hosts.clear()
    state.node_epochs.clear()
    state.lost_nodes.clear()
    state.ended.clear()
    state.members.clear()
    state.hungry.clear()
    state.backlog.clear()
    state.bereft.clear()
    state.rooms = NodeRooms()
    state.sandboxes = 0
    state.note_hosts(None)
    state.arrivals = 0
    state.tenancy = Tenancy()
    state.is_overcommitted = True
    active = {job.plan.attempt_id for job in event.jobs}
    for host in event.hosts:
        _restore_host(run, host)
    _release_orphans(run, event.hosts, active)
    for restored in event.jobs:
        rows = [h for h in event.hosts if h.attempt_id == restored.plan.attempt_id]
        _restore_job(run, restored, rows)
    hosts.settle_fates(run)
    run.grants_wanted = run.queue_wanted = True


def _restore_host(run: Pass, row: RestoredHost) -> None:
    if row.kind is HostKind.NODE:
        run.state.node_epochs[row.host_id] = row.epoch
    if row.claimed:
        run.state.hosts[row.host_id] = HostRecord(
            host_id=row.host_id,
            epoch=row.epoch,
            kind=row.kind,
            attempt_id=row.attempt_id,
            state=HostState.EXPECTED,
        )


def _release_orphans(run: Pass, rows: tuple[RestoredHost, ...], active: set[AttemptId]) -> None:
    """Hosts of attempts that are not active: their leader died before it released them."""
    orphans = {
        row.attempt_id: row.job_id
        for row in rows
        if row.attempt_id is not None and row.attempt_id not in active
    }
    for attempt_id, job_id in sorted(orphans.items()):
        run.emit(ReleaseGang(job_id=job_id or JobId(""), attempt_id=attempt_id))
    for row in rows:
        if row.attempt_id in orphans:
            run.state.hosts.pop(row.host_id, None)


def _restore_job(run: Pass, restored: RestoredJob, rows: list[RestoredHost]) -> None:
    plan = restored.plan
    run.state.arrivals += 1
    observed = restored.observed_generation
    job = JobRecord(
        plan=plan,
        generation=restored.generation,
        desired=restored.desired,
        state=restored.state,
        arrival=run.state.arrivals,
        base_step=restored.base_step,
        committed=restored.committed_step,
        next_ordinal=restored.next_ordinal,
        unconsumed=deque(sorted(restored.unconsumed)),
        policy=restored.policy,
        epochs={row.host_id: row.epoch for row in rows},
        evaluated=set(restored.evaluated_steps),
        checkpoint=Checkpointing(
            written_step=restored.checkpoint_step or restored.base_step or None
        ),
        reached_step=restored.reached_step,
        reason=restored.reason,
        said_generation=restored.generation if observed is None else observed,
        draining_since=run.now,
        progress_at=run.now,
    )
    run.state.jobs[plan.job_id] = job
    run.state.attempts[plan.attempt_id] = job
    if job.state is JobState.VALIDATING:
        job.state = JobState.QUEUED
    _keep_own_pause(job, restored.wished_generation)
    _restore_gang(run, job, rows)
    for group in restored.groups:
        _restore_group(run, job, group)
    lifecycle.hold_limit(run, job)
    _restore_evaluations(job, restored)
    run.touch(job)


def _keep_own_pause(job: JobRecord, wished: int | None) -> None:
    """A pause that the user did not ask for is the core's own; its reason tells."""
    is_pause = job.state in (JobState.PAUSING, JobState.PAUSED)
    is_answered = job.said_generation >= (job.generation if wished is None else wished)
    if is_pause and job.desired is Desired.RUN and is_answered and job.reason != gangs.YIELDS:
        job.pause_wanted = job.reason


def _restore_gang(run: Pass, job: JobRecord, rows: list[RestoredHost]) -> None:
    engines = sum(1 for row in rows if row.kind is HostKind.ENGINE)
    if job.state in GANG_STATES or (rows and job.state is JobState.RESUMING):
        gangs.take_gang(run.state, job, engines or job.plan.engines_min)
        if job.state not in (JobState.PAUSING, JobState.CANCELLING):
            gangs.emit_grant(run, job)
    elif rows:
        gangs.release_gang(run, job)


def _restore_group(run: Pass, job: JobRecord, row: RestoredGroup) -> None:
    group = GroupRecord(
        group_id=row.group_id,
        ordinal=ordinal_of(row.group_id),
        purpose=row.purpose,
        size=row.size,
        policy_version=row.policy_version,
        opened_at=run.now,
        opened_at_step=job.committed,
        rollouts=[_rollout(run, member) for member in _members(row)],
        grade_epoch=row.grade_epoch,
        progress_at=run.now,
        task=row.task,
    )
    assert [r.index for r in group.rollouts] == list(range(row.size)), row.group_id
    if row.assigned_position is not None and row.graded is not None:
        group.phase, group.position = GroupPhase.ASSIGNED, row.assigned_position
        group.usable, group.oldest_version = row.graded.usable, row.graded.oldest_version
        group.staleness = max(job.committed - group.oldest_possible_version(), 0)
        job.positions[row.assigned_position] = group.group_id
        roster.admit(run.state, job, group)
        return
    if row.closed:
        group.phase = GroupPhase.CLOSED
    roster.admit(run.state, job, group)
    if row.graded is not None:
        grading.accept_grade(run, job, group, row.graded)
        return
    group.is_estimated = not row.closed
    for rollout, source in zip(group.rollouts, _members(row), strict=True):
        if rollout.is_open:
            _restore_holdings(run, job, (group, rollout), source)


def _members(row: RestoredGroup) -> list[RestoredRollout]:
    return sorted(row.rollouts, key=lambda rollout: rollout.rollout_id)


def _rollout(run: Pass, row: RestoredRollout) -> RolloutRecord:
    return RolloutRecord(
        rollout_id=row.rollout_id,
        index=index_of(row.rollout_id),
        try_=row.try_,
        hop=row.hop,
        failed_tries=row.failed_tries,
        turn=row.turns,
        tokens=row.tokens,
        sampled_tokens=row.sampled_tokens,
        oldest_version=row.oldest_version,
        end=row.closed_end,
        progress_at=run.now,
    )


def _restore_holdings(
    run: Pass, job: JobRecord, member: tuple[GroupRecord, RolloutRecord], row: RestoredRollout
) -> None:
    """What the current try may hold is unknown until the claimed hosts have spoken."""
    group, rollout = member
    job.wanting[rollout.rollout_id] = None
    if job.gang is None:
        return
    if any(True for _ in run.state.expected_hosts(HostKind.NODE, None)):
        take_sandbox(run.state, job, (group, rollout), SandboxState.UNKNOWN, None)
        job.unsettled[rollout.rollout_id] = None
    engines = {h.host_id for h in run.state.expected_hosts(HostKind.ENGINE, job.attempt_id)}
    if row.hop > 0 and engines:
        rollout.expected_on = _expected(row.host_id, engines)
        rollout.is_unclaimed = row.host_id is None
        job.unsettled[rollout.rollout_id] = None


def _expected(host: HostId | None, engines: set[HostId]) -> HostId | None:
    return host if host in engines else None


def _restore_evaluations(job: JobRecord, restored: RestoredJob) -> None:
    """Evaluations that have groups go on, those that waited behind them wait, the newest begins if due.

    They are made in the order of their steps, so that a step before the last made one waits no more.
    """
    opened: dict[int, int] = {}
    for ordinal in restored.issued_evaluations:
        step, place = evaluation.place_of(ordinal)
        if step not in job.evaluated:
            opened[step] = max(opened.get(step, 0), place + 1)
    known = {policy.version: policy for policy in restored.policies}
    last = max((*job.evaluated, *opened), default=-1)
    waiting = [step for step in known if step > last and evaluation.is_due(job, step)]
    for step in sorted({*opened, *waiting}):
        run = EvaluationRun(step=step, policy=known.get(step), opened=opened.get(step, 0))
        job.evaluations.append(run)
    if job.policy is not None:
        evaluation.begin_due(job, job.policy)
