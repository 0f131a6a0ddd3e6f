"""A model of the rows in Postgres that the coordinator relies on, with their fences.

The driver writes here where a real shell or host would commit; a new leader starts from nothing else.
A double effect (a group in two batches, a hop that falls) fails here at once.
"""

from dataclasses import dataclass, field, replace

from domain.commands import AssignGroup, EndTry, OpenGroup, PlaceRollout
from domain.events import (
    GroupGraded,
    RestoredGroup,
    RestoredHost,
    RestoredJob,
    RestoredRollout,
    RolloutClosed,
    StateRestored,
)
from domain.ids import (
    EVALUATION_ORDINAL_BASE,
    AttemptId,
    GroupId,
    HostId,
    JobId,
    RolloutId,
    attempt_of,
    group_of,
    ordinal_of,
    rollout_id,
    task_ordinal,
)
from domain.plan import JobPlan
from domain.policy import PolicyRef
from domain.states import TERMINAL, Desired, DropReason, End, HostKind, JobState, Purpose, trained

PENDING = "pending"

TASKS = 5
"""Of a job; few, so that they come again within a run."""


@dataclass(slots=True)
class RolloutRow:
    """One rollout."""

    rollout_id: RolloutId
    try_: int = 1
    hop: int = 0
    failed_tries: int = 0
    end: End | None = None
    turns: int = 0
    tokens: int = 0
    oldest: int | None = None
    newest: int | None = None
    host: HostId | None = None
    tries: list[tuple[int, End, bool]] = field(default_factory=list)

    def closed(self, reread: bool = False) -> RolloutClosed:
        """The close as an event."""
        assert self.end is not None
        return RolloutClosed(
            rollout_id=self.rollout_id,
            try_=self.try_,
            hop=self.hop,
            end=self.end,
            oldest_version=self.oldest,
            newest_version=self.newest,
            tokens=self.tokens,
            sampled_tokens=self.tokens,
            turns=self.turns,
            reread=reread,
        )


@dataclass(slots=True)
class GroupRow:
    """One group."""

    opened: OpenGroup
    rollouts: list[RolloutRow]
    created_at: float
    grade_epoch: int = 0
    graded: GroupGraded | None = None
    disposition: str = PENDING
    step: int | None = None
    position: int | None = None
    staleness: int | None = None

    @property
    def is_closed(self) -> bool:
        """No rollout is open."""
        return all(row.end is not None for row in self.rollouts)


@dataclass(slots=True)
class JobRow:
    """One job with its only attempt."""

    plan: JobPlan
    generation: int = 1
    wished: int = 1
    observed: int = 0
    desired: Desired = Desired.RUN
    state: JobState = JobState.VALIDATING
    reason: str | None = None
    queue_position: int | None = None
    failure_code: str | None = None
    base_step: int = 0
    committed: int = 0
    policy: PolicyRef | None = None
    policies: dict[int, PolicyRef] = field(default_factory=dict)
    start_ordinal: int = 0
    start_unconsumed: tuple[int, ...] = ()
    checkpoint_step: int | None = None
    evaluated: list[int] = field(default_factory=list)
    scores: dict[int, float | None] = field(default_factory=dict)
    states: list[JobState] = field(default_factory=list)
    notes: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    steps: dict[int, list[GroupId]] = field(default_factory=dict)


@dataclass(slots=True)
class LeaseRow:
    """One desired host."""

    host_id: HostId
    kind: HostKind
    attempt_id: AttemptId | None
    job_id: JobId | None
    epoch: int = 1
    is_up: bool = True
    is_claimed: bool = False


class Rows:
    """All rows."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, JobRow] = {}
        self.groups: dict[GroupId, GroupRow] = {}
        self.leases: dict[HostId, LeaseRow] = {}

    def job_of(self, attempt: AttemptId) -> JobRow:
        """The job that the attempt belongs to."""
        return next(job for job in self.jobs.values() if job.plan.attempt_id == attempt)

    def groups_of(self, attempt: AttemptId) -> list[GroupRow]:
        """Groups of an attempt by creation."""
        return [row for group, row in self.groups.items() if attempt_of(group) == attempt]

    def rollout(self, rollout: RolloutId) -> RolloutRow:
        """One rollout row."""
        return next(r for r in self.groups[group_of(rollout)].rollouts if r.rollout_id == rollout)

    def open_group(self, command: OpenGroup, now: float) -> None:
        """Insert, or do nothing when the group exists."""
        if command.group_id in self.groups:
            return
        members = [RolloutRow(rollout_id(command.group_id, i)) for i in range(command.size)]
        self.groups[command.group_id] = GroupRow(command, members, now)

    def place(self, command: PlaceRollout) -> bool:
        """Raise the hop; False when the rollout is closed already."""
        row = self.rollout(command.rollout_id)
        if row.end is not None:
            return False
        assert command.hop > row.hop, f"hop of {row.rollout_id} falls to {command.hop}"
        assert command.try_ == row.try_, f"{row.rollout_id} placed for another try"
        row.hop, row.host = command.hop, command.host_id
        return True

    def end_try(self, command: EndTry) -> bool:
        """Record the try's end; False when the rollout is closed already."""
        row = self.rollout(command.rollout_id)
        if row.end is not None:
            return False
        assert (row.try_, row.hop) == (command.try_, command.hop), command
        row.tries.append((command.try_, command.end, command.counts))
        row.failed_tries += command.counts
        if command.next_try is not None:
            row.try_ = command.next_try
            row.turns = row.tokens = 0
            row.oldest = row.newest = row.host = None
        return True

    def drop(self, group: GroupId, reason: DropReason) -> None:
        """Compare-and-set on a pending disposition."""
        row = self.groups[group]
        if row.disposition == PENDING:
            row.disposition = f"dropped({reason.value})"
            row.step = row.position = None

    def assign(self, command: AssignGroup) -> None:
        """Insert the batch member under its unique constraints."""
        row = self.groups[command.group_id]
        assert row.step is None, f"{command.group_id} is assigned twice"
        assert row.disposition == PENDING, f"{command.group_id} is {row.disposition}"
        assert row.graded is not None, f"{command.group_id} is not graded"
        taken = [
            other
            for other in self.groups_of(command.attempt_id)
            if (other.step, other.position) == (command.step, command.position)
        ]
        assert not taken, f"position {command.position} of step {command.step} is taken"
        assert row.graded.oldest_version is not None
        assert command.staleness == command.step - 1 - row.graded.oldest_version, command
        row.step, row.position = command.step, command.position
        row.staleness = command.staleness

    def commit(self, attempt: AttemptId, policy: PolicyRef, diverged: bool) -> list[GroupId]:
        """Commit the step row of the full step after the last one."""
        job = self.job_of(attempt)
        step = job.committed + 1
        members = [row for row in self.groups_of(attempt) if row.step == step]
        assert len(members) == job.plan.groups_per_batch, f"step {step} has {len(members)} groups"
        for row in members:
            dropped = f"dropped({DropReason.DIVERGED.value})"
            row.disposition = dropped if diverged else trained(step)
        job.committed, job.policy = step, policy
        job.policies[step] = policy
        job.steps[step] = [row.opened.group_id for row in members]
        return job.steps[step]

    def restored(self) -> StateRestored:
        """What a new leader reads."""
        jobs = [job for job in self.jobs.values() if job.state not in TERMINAL and job.observed]
        return StateRestored(
            jobs=tuple(self._restored_job(job) for job in jobs),
            hosts=tuple(
                RestoredHost(
                    host_id=row.host_id,
                    epoch=row.epoch,
                    kind=row.kind,
                    attempt_id=row.attempt_id,
                    claimed=row.is_claimed,
                    job_id=row.job_id,
                )
                for row in self.leases.values()
                if row.is_up
            ),
        )

    def _restored_job(self, job: JobRow) -> RestoredJob:
        target = job.plan.target_eval
        reached = [
            step
            for step, score in job.scores.items()
            if target is not None and score is not None and score >= target
        ]
        groups = self.groups_of(job.plan.attempt_id)
        issued = [g.opened.ordinal for g in groups if g.opened.purpose is Purpose.TRAIN]
        pending = [g for g in groups if g.disposition == PENDING]
        return RestoredJob(
            plan=job.plan,
            generation=job.generation,
            desired=job.desired,
            state=job.state,
            base_step=job.base_step,
            committed_step=job.committed,
            policy=job.policy,
            next_ordinal=max([job.start_ordinal, *(o + 1 for o in issued)]),
            unconsumed=tuple(o for o in job.start_unconsumed if o not in issued),
            groups=tuple(_restored_group(group) for group in pending),
            checkpoint_step=job.checkpoint_step,
            evaluated_steps=tuple(job.evaluated),
            observed_generation=job.observed,
            wished_generation=job.wished,
            reason=job.reason,
            policies=tuple(job.policies.values()),
            reached_step=min(reached, default=None),
            issued_evaluations=tuple(
                group.opened.ordinal
                for group in groups
                if group.opened.purpose is Purpose.EVALUATION
            ),
        )


def task_of(group: GroupId) -> int | None:
    """Number of a group's task: training tasks come again every few groups, repeats are of one task."""
    ordinal = ordinal_of(group)
    return None if ordinal >= EVALUATION_ORDINAL_BASE else task_ordinal(ordinal) % TASKS


def _restored_group(group: GroupRow) -> RestoredGroup:
    return RestoredGroup(
        task=task_of(group.opened.group_id),
        group_id=group.opened.group_id,
        purpose=group.opened.purpose,
        size=group.opened.size,
        created_at=group.created_at,
        policy_version=group.opened.policy_version,
        grade_epoch=group.grade_epoch,
        rollouts=tuple(
            RestoredRollout(
                rollout_id=row.rollout_id,
                try_=row.try_,
                hop=row.hop,
                failed_tries=row.failed_tries,
                closed_end=row.end,
                tokens=row.tokens,
                sampled_tokens=row.tokens,
                turns=row.turns,
                oldest_version=row.oldest if row.end is not None else None,
                host_id=row.host,
            )
            for row in group.rollouts
        ),
        closed=group.is_closed,
        graded=None if group.graded is None else replace(group.graded, reread=False),
        assigned_step=group.step,
        assigned_position=group.position,
    )
