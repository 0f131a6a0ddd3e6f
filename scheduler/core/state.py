"""The whole soft state, and one pass over it.

A `Pass` is one call of `step`: the state, the time, and the commands so far. Rules receive it, change
records through it and append commands; nothing of a pass survives it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from domain.commands import Command, SetJobState, SetRanks
from domain.ids import AttemptId, GroupId, HostId, JobId, RolloutId, attempt_of, group_of, index_of
from domain.ids import host_id as host_id_of
from domain.plan import Pool
from domain.states import HostKind, JobState, move
from scheduler.core import pacing
from scheduler.core.fair_share import Tenancy
from scheduler.core.forecast import NO_START
from scheduler.core.node_rooms import NodeRooms
from scheduler.core.records import (
    GroupRecord,
    HostRecord,
    HostState,
    JobRecord,
    RolloutRecord,
    SandboxState,
)

ENDED_MAX: Final = 1024
"""Ended attempts that are remembered; a repetition comes within seconds, not a thousand jobs later."""


@dataclass(slots=True)
class State:
    """Jobs, hosts, and the counters that capacity is decided on."""

    pool: Pool
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    attempts: dict[AttemptId, JobRecord] = field(default_factory=dict)
    hosts: dict[HostId, HostRecord] = field(default_factory=dict)
    node_epochs: dict[HostId, int] = field(default_factory=dict)
    """Highest epoch seen of each node, kept after its loss."""
    lost_nodes: dict[HostId, int] = field(default_factory=dict)
    """Highest epoch of each node that was lost."""
    ended: dict[AttemptId, None] = field(default_factory=dict)
    """Attempts that ended lately: a repeated submission must not start them again."""
    members: dict[RolloutId, tuple[JobRecord, GroupRecord, RolloutRecord]] = field(
        default_factory=dict
    )
    """What `find_rollout` says of each rollout of an open group; of others the id is taken apart."""
    sandboxes: int = 0
    """Sandboxes that agents hold over all jobs (`holdings.py` keeps it)."""
    hungry: dict[JobId, None] = field(default_factory=dict)
    """Jobs that may want sandboxes: touched since they were last found to want none."""
    backlog: dict[JobId, None] = field(default_factory=dict)
    """Jobs of which a step left work to the next ones, so that no step takes long."""
    bereft: dict[GroupId, tuple[HostId, ...]] = field(default_factory=dict)
    """Groups whose lost nodes still have to be folded in."""
    rooms: NodeRooms = field(default_factory=NodeRooms)
    """Room on the nodes, where they say it."""
    is_grant_cut: bool = False
    """The last grant reached its bound; the next event goes on with it."""
    live_nodes: list[HostRecord] | None = None
    """Live node agents by id; None when one came or went."""
    is_overcommitted: bool = False
    """After a restart nodes may report more sandboxes than the reserve leaves; no more are granted."""
    arrivals: int = 0
    tenancy: Tenancy = field(default_factory=Tenancy)
    """What each organization got of the pool lately."""

    def forget(self, job: JobRecord) -> None:
        """The job's attempt ended: its later events are foreign."""
        del self.jobs[job.plan.job_id]
        del self.attempts[job.attempt_id]
        self.hungry.pop(job.plan.job_id, None)
        self.backlog.pop(job.plan.job_id, None)
        self.sandboxes -= job.sandboxes
        for group in job.groups.values():
            for rollout in group.rollouts:
                self.members.pop(rollout.rollout_id, None)
                if rollout.part is not None:
                    is_ready = rollout.sandbox is SandboxState.READY
                    self.rooms.give_back(rollout.part, is_ready)
        self.ended[job.attempt_id] = None
        while len(self.ended) > ENDED_MAX:
            del self.ended[next(iter(self.ended))]

    def job_of(self, attempt: AttemptId | None) -> JobRecord | None:
        """The active job that runs this attempt."""
        return None if attempt is None else self.attempts.get(attempt)

    def find_group(self, group: GroupId) -> tuple[JobRecord, GroupRecord] | None:
        """A live group with its job."""
        job = self.attempts.get(attempt_of(group))
        record = None if job is None else job.groups.get(group)
        return None if job is None or record is None else (job, record)

    def find_rollout(
        self, rollout: RolloutId
    ) -> tuple[JobRecord, GroupRecord, RolloutRecord] | None:
        """A member of a live group, with its group and job."""
        known = self.members.get(rollout)
        if known is not None:
            return known
        found = self.find_group(group_of(rollout))
        if found is None or not 0 <= index_of(rollout) < len(found[1].rollouts):
            return None
        return (*found, found[1].rollouts[index_of(rollout)])

    def nodes(self) -> list[HostRecord]:
        """Live sandbox node agents, by id; not to be changed."""
        if self.live_nodes is None:
            found = [h for h in self.hosts.values() if h.kind is HostKind.NODE and h.is_live]
            self.live_nodes = sorted(found, key=lambda host: host.host_id)
        return self.live_nodes

    def engines_of(self, job: JobRecord) -> list[HostRecord]:
        """Live engine hosts of the job's attempt, by id; not to be changed."""
        if job.engines is None:
            known = (self.hosts.get(host_id) for host_id in job.epochs)
            found = [h for h in known if h is not None and h.kind is HostKind.ENGINE and h.is_live]
            job.engines = sorted(found, key=lambda host: host.host_id)
            job.newest_version = pacing.newest_version(found)
        return job.engines

    def newest_version(self, job: JobRecord) -> int:
        """Newest version that a live engine of the job serves; -1 without engines."""
        self.engines_of(job)
        return job.newest_version

    def note_hosts(self, attempt: AttemptId | None) -> None:
        """A host of this attempt, or a node, came, went, changed its state or its version."""
        if attempt is None:
            self.live_nodes = None
        job = self.job_of(attempt)
        if job is not None:
            job.engines = None
            job.fitting.clear()
            job.weights_are_old = True

    def trainer_of(self, job: JobRecord) -> HostRecord | None:
        """The live trainer host of the job's attempt."""
        name = host_id_of(job.attempt_id, HostKind.TRAINER.value)
        host = self.hosts.get(name) if name in job.epochs else None
        return host if host is not None and host.is_live else None

    def expected_hosts(self, kind: HostKind, attempt: AttemptId | None) -> Iterator[HostRecord]:
        """Restored hosts of this kind whose fate is still open."""
        for host in self.hosts.values():
            is_meant = kind is HostKind.NODE or host.attempt_id == attempt
            if host.kind is kind and host.state is HostState.EXPECTED and is_meant:
                yield host


@dataclass(slots=True, eq=False)
class Pass:
    """One call of `step`."""

    state: State
    now: float
    commands: list[Command] = field(default_factory=list)
    touched: dict[JobId, None] = field(default_factory=dict)
    """Jobs to settle in this pass, in the order in which they were touched."""
    grants_wanted: bool = False
    """Sandboxes or nodes changed: every running job may open groups."""
    queue_wanted: bool = False
    """The pool or the queue changed."""
    current: JobId | None = None
    """The job that is being handled, named when an assertion fails."""
    ranks: dict[HostId, dict[RolloutId, int]] = field(default_factory=dict)
    unranked: dict[JobId, None] = field(default_factory=dict)
    """Jobs that have groups to rank, whether or not they are settled."""
    due: dict[JobId, list[tuple[GroupRecord, list[RolloutRecord]]]] = field(default_factory=dict)
    """Waiting tries of jobs that were asked in this pass, by group, the best rank last."""

    def emit(self, command: Command) -> None:
        """Append a command; commands are executed in this order."""
        self.commands.append(command)

    def touch(self, job: JobRecord) -> None:
        """Settle this job before the pass ends."""
        self.touched[job.plan.job_id] = None
        self.state.hungry[job.plan.job_id] = None

    def leave(self, job: JobRecord) -> None:
        """A bound of work was reached: the job is settled again at the next event."""
        self.state.backlog[job.plan.job_id] = None

    def set_state(self, job: JobRecord, target: JobState, reason: str | None = None) -> None:
        """Move a job by the table of legal moves and say so."""
        job.state = move(job.state, target)
        job.reason = reason
        job.queue_position, job.start = None, NO_START
        self.say_state(job)

    def say_state(self, job: JobRecord) -> None:
        """Show the job's present state, reason and queue position."""
        job.said_generation = job.generation
        self.emit(
            SetJobState(
                job_id=job.plan.job_id,
                state=job.state,
                observed_generation=job.generation,
                reason=job.reason,
                queue_position=job.queue_position,
                predicted_start=job.start.at,
                predicted_start_reason=job.start.reason,
            )
        )

    def flush_ranks(self) -> None:
        """Emit one `SetRanks` for each engine whose rollouts changed rank."""
        for host_id in sorted(self.ranks):
            host = self.state.hosts.get(host_id)
            if host is not None and host.is_live:
                ranks = tuple(sorted(self.ranks[host_id].items()))
                self.emit(SetRanks(host_id=host_id, epoch=host.epoch, ranks=ranks))
        self.ranks.clear()
