"""Modelled hosts: an engine that plays turns, a trainer, a node agent with sandboxes and a grader."""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from domain.commands import (
    CloseStep,
    ForkSandboxes,
    GradeGroup,
    PlaceRollout,
    SetRanks,
    SyncEngine,
    WriteCheckpoint,
)
from domain.events import (
    CheckpointWritten,
    EngineSynced,
    EngineSyncFailed,
    Event,
    GradeFailed,
    GroupGraded,
    HeldRollout,
    HostJoined,
    SandboxReady,
    StepCommitted,
    TrainerReady,
    TryFailed,
    TurnFinished,
    TurnSampled,
)
from domain.ids import AttemptId, CheckpointId, GroupId, HostId, RolloutId, node_index
from domain.policy import PolicyRef
from domain.states import End, HostKind, Purpose
from tests.simulation.rows import LeaseRow, RolloutRow, task_of

if TYPE_CHECKING:
    from tests.simulation.driver import World


PREFIX_TOKENS = 5
"""What members of a group share, on engines that say what they hold."""


def policy_of(attempt: AttemptId, version: int, epoch: int) -> PolicyRef:
    """The policy that a modelled trainer publishes."""
    return PolicyRef(
        attempt_id=attempt,
        version=version,
        weights_sha=f"sha-{version}",
        uri=f"weights/{epoch}/{version}",
        probe_uri=f"probe/{epoch}/{version}",
        trainer_epoch=epoch,
    )


@dataclass(slots=True)
class Machine:
    """A host process of one epoch; `connection` rises when its link to the leader breaks."""

    world: "World"
    host_id: HostId
    epoch: int
    attempt_id: AttemptId | None
    is_alive: bool = True
    is_connected: bool = False
    connection: int = 0

    kind = HostKind.NODE

    def send(self, event: Event) -> None:
        """Send to the leader; lost when the link breaks before it arrives."""
        if self.is_connected:
            self.world.deliver_from(self, event)

    def after(self, delay: float, act: "Callback") -> None:
        """Do something later if this process still lives."""

        def run() -> None:
            if self.is_alive:
                act()

        self.world.after(delay, run)

    def snapshot(self) -> list[Event]:
        """What it sends after each dial."""
        raise NotImplementedError


if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[], None]


@dataclass(slots=True)
class Run:
    """A rollout on an engine."""

    rollout_id: RolloutId
    try_: int
    hop: int
    node: HostId
    rank: int
    turn: int = 0
    oldest: int | None = None
    newest: int | None = None
    is_sampling: bool = False


@dataclass(slots=True)
class Engine(Machine):
    """Plays turns of the rollouts that it holds, best rank first, at most `slots` at once."""

    slots: int = 8
    version: int = -1
    runs: dict[RolloutId, Run] = field(default_factory=dict)

    kind = HostKind.ENGINE

    def snapshot(self) -> list[Event]:
        """All rollouts that it holds."""
        held = tuple(
            HeldRollout(run.rollout_id, run.try_, run.hop, run.turn, run.oldest)
            for run in self.runs.values()
        )
        kv_tokens = self.world.kv_tokens
        return [
            HostJoined(
                host_id=self.host_id,
                epoch=self.epoch,
                kind=self.kind,
                attempt_id=self.attempt_id,
                slots=self.slots,
                held=held,
                policy_version=self.version,
                kv_tokens=kv_tokens,
                may_migrate=kv_tokens > 0,
            )
        ]

    def place(self, command: PlaceRollout) -> None:
        """Take a rollout; turns already played under this try come from the node's journal."""
        row = self.world.rows.rollout(command.rollout_id)
        run = Run(command.rollout_id, command.try_, command.hop, command.node, command.rank)
        run.turn, run.oldest, run.newest = row.turns, row.oldest, row.newest
        self.runs[run.rollout_id] = run
        self.start_turns()

    def start_turns(self) -> None:
        """Fill free slots with the best-ranked waiting rollouts."""
        sampling = sum(run.is_sampling for run in self.runs.values())
        waiting = [run for run in self.runs.values() if not run.is_sampling]
        waiting.sort(key=lambda run: (run.rank, run.rollout_id))
        for run in waiting[: max(self.slots - sampling, 0)]:
            run.is_sampling = True
            version = self.version
            turn_s = self.world.workload.turn_s(run.rollout_id, run.turn)
            self.after(turn_s, partial(self.end_turn, run, version))

    def end_turn(self, run: Run, version: int) -> None:
        """A turn is over: fenced by try and hop, then reported or closed."""
        run.is_sampling = False
        row = self.world.rows.rollout(run.rollout_id)
        is_mine = self.runs.get(run.rollout_id) is run
        if is_mine and (row.end is not None or (row.try_, row.hop) != (run.try_, run.hop)):
            del self.runs[run.rollout_id]
            is_mine = False
        if is_mine:
            self._finish_turn(run, row, version)
        self.start_turns()

    def _finish_turn(self, run: Run, row: RolloutRow, version: int) -> None:
        world = self.world
        failure = world.workload.failure(run.rollout_id, run.try_, run.turn)
        if not world.holds(run.node, run.rollout_id, run.try_):
            failure = End.SANDBOX_LOST
        if failure is not None:
            del self.runs[run.rollout_id]
            self.send(TryFailed(run.rollout_id, run.try_, run.hop, failure, "modelled"))
            return
        run.turn += 1
        run.oldest = version if run.oldest is None else min(run.oldest, version)
        run.newest = version
        row.turns, row.tokens = run.turn, run.turn * 10
        row.oldest, row.newest = run.oldest, run.newest
        if run.turn >= world.workload.turns(run.rollout_id):
            row.end = End.DONE
            del self.runs[run.rollout_id]
            world.release(run.rollout_id)
            self.send(row.closed())
            return
        if world.kv_tokens:
            name, place = run.rollout_id, (run.try_, run.hop, run.turn)
            self.send(TurnSampled(name, *place, row.tokens, 0.1, PREFIX_TOKENS))
        self.send(
            TurnFinished(
                run.rollout_id, run.try_, run.hop, run.turn, row.tokens, row.tokens, run.oldest, 0.1
            )
        )

    def obey(self, command: SetRanks | SyncEngine) -> None:
        """Take new ranks or new weights."""
        if isinstance(command, SyncEngine):
            self.sync(command.policy)
            return
        for rollout, rank in command.ranks:
            if rollout in self.runs:
                self.runs[rollout].rank = rank

    def sync(self, policy: PolicyRef) -> None:
        """Load weights; turns go on meanwhile."""

        def done() -> None:
            if self.world.workload.sync_fails(self.host_id, policy.version):
                self.send(EngineSyncFailed(self.host_id, self.epoch, policy.version, "modelled"))
            elif policy.version > self.version:
                self.version = policy.version
                self.send(EngineSynced(self.host_id, self.epoch, policy.version))

        self.after(self.world.workload.sync_s, done)


@dataclass(slots=True)
class Trainer(Machine):
    """Finishes steps, publishes policies, writes checkpoints, one at a time."""

    busy_until: float = 0.0

    kind = HostKind.TRAINER

    def snapshot(self) -> list[Event]:
        """Joins, and is ready with the last committed policy."""
        assert self.attempt_id is not None
        job = self.world.rows.job_of(self.attempt_id)
        if job.policy is None:
            job.policy = policy_of(self.attempt_id, job.base_step, self.epoch)
            job.policies[job.base_step] = job.policy
        return [
            HostJoined(self.host_id, self.epoch, self.kind, self.attempt_id, 0),
            TrainerReady(self.attempt_id, self.host_id, self.epoch, job.policy),
        ]

    def obey(self, command: CloseStep | WriteCheckpoint) -> None:
        """Finish a step or write a checkpoint."""
        if isinstance(command, CloseStep):
            self.close_step(command.step)
        else:
            self.checkpoint()

    def close_step(self, step: int) -> None:
        """Finish the step if it is the next one and full; repeated requests are harmless."""

        def done() -> None:
            assert self.attempt_id is not None
            rows, attempt = self.world.rows, self.attempt_id
            job = rows.job_of(attempt)
            members = [row for row in rows.groups_of(attempt) if row.step == step]
            if step != job.committed + 1 or len(members) < job.plan.groups_per_batch:
                return
            policy = policy_of(attempt, step, self.epoch)
            is_diverged = self.world.workload.diverges(step)
            rows.commit(attempt, policy, is_diverged)
            self.send(StepCommitted(attempt, step, policy, is_diverged))

        self._queue(self.world.workload.step_s, done)

    def checkpoint(self) -> None:
        """Write a checkpoint of the last committed step."""

        def done() -> None:
            assert self.attempt_id is not None
            job = self.world.rows.job_of(self.attempt_id)
            job.checkpoint_step = job.committed
            name = CheckpointId(f"ckpt_{job.committed}")
            self.send(CheckpointWritten(self.attempt_id, job.committed, name))

        self._queue(self.world.workload.checkpoint_s, done)

    def _queue(self, seconds: float, act: "Callback") -> None:
        self.busy_until = max(self.busy_until, self.world.now) + seconds
        self.after(self.busy_until - self.world.now, act)


@dataclass(slots=True)
class Node(Machine):
    """Holds sandboxes and grades closed groups."""

    holds: dict[tuple[RolloutId, int], None] = field(default_factory=dict)

    kind = HostKind.NODE

    def snapshot(self) -> list[Event]:
        """All tries that it holds."""
        held = tuple(HeldRollout(rollout, try_, 0, 0) for rollout, try_ in self.holds)
        return [HostJoined(self.host_id, self.epoch, self.kind, None, 0, held)]

    def fork(self, command: ForkSandboxes) -> None:
        """Hold these tries; idempotent per member."""

        def done() -> None:
            for rollout, try_ in command.members:
                self.holds[rollout, try_] = None
                task = task_of(command.group_id)
                self.send(SandboxReady(rollout, try_, self.host_id, self.epoch, task))

        self.after(self.world.workload.fork_s, done)

    def grade(self, command: GradeGroup) -> None:
        """Grade under the epoch; a lower one than the row's is fenced out."""
        self.after(self.world.workload.grade_s, lambda: self._graded(command))

    def _graded(self, command: GradeGroup) -> None:
        row = self.world.rows.groups[command.group_id]
        if row.graded is None and command.grade_epoch == row.grade_epoch:
            if self.world.workload.grade_fails(command.group_id, command.grade_epoch):
                self.send(GradeFailed(command.group_id, command.grade_epoch, "modelled"))
                return
            row.graded = self._verdict(command)
        if row.graded is not None:
            self.send(row.graded)

    def _verdict(self, command: GradeGroup) -> GroupGraded:
        row = self.world.rows.groups[command.group_id]
        usable = [r for r in row.rollouts if r.end is End.DONE]
        versions = [r.oldest for r in usable if r.oldest is not None]
        is_flat = self.world.workload.is_flat(command.group_id)
        if row.opened.purpose is Purpose.EVALUATION:
            assert set(versions) <= {row.opened.policy_version}, f"{command.group_id} was split"
        return GroupGraded(
            group_id=command.group_id,
            grade_epoch=command.grade_epoch,
            usable=len(usable),
            zero_variance=is_flat,
            oldest_version=min(versions, default=None),
            mean_reward=0.0 if is_flat else 0.5,
        )


def make(world: "World", lease: LeaseRow, slots: int) -> Machine:
    """A new process for this lease and epoch."""
    from tests.simulation.roomy import RoomyNode

    match lease.kind:
        case HostKind.ENGINE:
            return Engine(world, lease.host_id, lease.epoch, lease.attempt_id, slots=slots)
        case HostKind.TRAINER:
            return Trainer(world, lease.host_id, lease.epoch, lease.attempt_id)
        case HostKind.NODE if world.node_bytes:
            capacity = world.node_bytes[node_index(lease.host_id)]
            return RoomyNode(world, lease.host_id, lease.epoch, None, capacity=capacity)
        case HostKind.NODE:
            return Node(world, lease.host_id, lease.epoch, None)


def group_ordinal(group: GroupId) -> int:
    """Ordinal of a group."""
    return int(group.rpartition("_")[2])
