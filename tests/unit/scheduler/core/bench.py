"""A bench for unit tests: feeds events to a coordinator and reads the commands, no clock, no hosts.

`Bench.running()` gives a job whose trainer, engines and node are there. Helpers answer for the outside
in one line each; a test names only what it is about.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from domain.commands import Command, ForkSandboxes, GradeGroup, OpenGroup, PlaceRollout
from domain.events import (
    CheckpointWritten,
    DesiredChanged,
    EngineSynced,
    Event,
    GroupGraded,
    HeldRollout,
    HostJoined,
    HostLost,
    JobSubmitted,
    RolloutClosed,
    SandboxReady,
    StepCommitted,
    Tick,
    TrainerReady,
    TryFailed,
    TurnFinished,
)
from domain.ids import CheckpointId, GroupId, HostId, RolloutId, group_id, host_id, node_host_id
from domain.plan import JobPlan, Pool
from domain.policy import PolicyRef
from domain.states import Desired, End, HostKind
from scheduler.core.coordinator import Coordinator
from scheduler.core.records import GroupRecord, JobRecord, RolloutRecord
from scheduler.core.refusals import Refusal
from tests.simulation.machines import policy_of
from tests.simulation.plans import POOL, plan

NODE = node_host_id(0)

C = TypeVar("C", bound=Command)


@dataclass(slots=True)
class Bench:
    """One coordinator under test; `now` moves only when a test says so."""

    pool: Pool = POOL
    now: float = 0.0
    core: Coordinator = field(init=False)
    commands: list[Command] = field(default_factory=list)
    last: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Coordinator(self.pool, checking=True)

    @classmethod
    def running(cls, job: JobPlan | None = None, engines: int = 1, pool: Pool = POOL) -> "Bench":
        """A bench with one running job."""
        bench = cls(pool)
        bench.node()
        bench.start(job or plan(), engines)
        return bench

    def start(self, job: JobPlan, engines: int = 1) -> None:
        """Submit a job and bring its hosts up, engines synced."""
        self.submit(job)
        self.trainer(job)
        for index in range(engines):
            self.engine(job, index)
            self.synced(job, index, 0)

    def feed(self, event: Event) -> list[Command]:
        """Fold an event that must be accepted; the commands that follow."""
        refusal = self.core.accept(event)
        assert refusal is None, (refusal, event)
        self.last = self.core.step(self.now, event)
        self.commands += self.last
        return self.last

    def refusal(self, event: Event) -> Refusal:
        """The refusal of an event that must not be accepted."""
        refusal = self.core.accept(event)
        assert refusal is not None, event
        return refusal

    def found(self, kind: type[C], within: list[Command] | None = None) -> list[C]:
        """Commands of one kind, of the last event or of the given list."""
        return [c for c in (self.last if within is None else within) if isinstance(c, kind)]

    def job(self, name: str = "a") -> JobRecord:
        """The record of a job."""
        return self.core.state.attempts[plan(name).attempt_id]

    def group(self, ordinal: int, name: str = "a") -> GroupRecord:
        """A live group by its ordinal."""
        return self.job(name).groups[gid(ordinal, name)]

    def rollout(self, ordinal: int, index: int = 0, name: str = "a") -> RolloutRecord:
        """A member of a live group."""
        return self.group(ordinal, name).rollouts[index]

    # The outside, one answer a line.

    def submit(self, job: JobPlan, base_step: int = 0) -> list[Command]:
        return self.feed(JobSubmitted(job, 1, base_step, 0, ()))

    def desire(self, desired: Desired, generation: int = 2, name: str = "a") -> list[Command]:
        return self.feed(DesiredChanged(plan(name).job_id, desired, generation))

    def tick(self, seconds: float = 1.0) -> list[Command]:
        self.now += seconds
        return self.feed(Tick())

    def node(self, index: int = 0, epoch: int = 1, held: tuple[HeldRollout, ...] = ()) -> None:
        self.feed(HostJoined(node_host_id(index), epoch, HostKind.NODE, None, 0, held))

    def trainer(self, job: JobPlan, epoch: int = 1, version: int = 0) -> list[Command]:
        name = host_id(job.attempt_id, "trainer")
        self.feed(HostJoined(name, epoch, HostKind.TRAINER, job.attempt_id, 0))
        policy = policy_of(job.attempt_id, version, epoch)
        return self.feed(TrainerReady(job.attempt_id, name, epoch, policy))

    def engine(
        self,
        job: JobPlan,
        index: int = 0,
        epoch: int = 1,
        held: tuple[HeldRollout, ...] = (),
        version: int = -1,
    ) -> list[Command]:
        name = engine_id(index, job)
        kind, attempt = HostKind.ENGINE, job.attempt_id
        return self.feed(HostJoined(name, epoch, kind, attempt, 8, held, version))

    def synced(self, job: JobPlan, index: int, version: int, epoch: int = 1) -> list[Command]:
        return self.feed(EngineSynced(engine_id(index, job), epoch, version))

    def lost(self, host: HostId, epoch: int = 1) -> list[Command]:
        return self.feed(HostLost(host, epoch, "lease_expired"))

    def ready(
        self, rollout: RolloutRecord, node: HostId = NODE, epoch: int = 1, task: int | None = None
    ) -> list[Command]:
        return self.feed(SandboxReady(rollout.rollout_id, rollout.try_, node, epoch, task))

    def turn(self, rollout: RolloutRecord, turn: int, version: int = 0) -> list[Command]:
        tokens = 10 * turn
        return self.feed(
            TurnFinished(
                rollout.rollout_id, rollout.try_, rollout.hop, turn, tokens, tokens, version, 0.0
            )
        )

    def fail(self, rollout: RolloutRecord, end: End = End.ENV_FAILED) -> list[Command]:
        return self.feed(TryFailed(rollout.rollout_id, rollout.try_, rollout.hop, end, "test"))

    def close(
        self, rollout: RolloutRecord, version: int | None = 0, end: End = End.DONE, turns: int = 2
    ) -> list[Command]:
        return self.feed(closed(rollout, version, end, turns))

    def grade(
        self,
        group: GroupRecord,
        usable: int = 2,
        flat: bool = False,
        version: int | None = 0,
    ) -> list[Command]:
        return self.feed(GroupGraded(group.group_id, group.grade_epoch, usable, flat, version, 0.5))

    def play(self, group: GroupRecord, version: int = 0, flat: bool = False) -> list[Command]:
        """Run a group from its forks to its verdicts."""
        for rollout in group.rollouts:
            self.ready(rollout)
        for rollout in group.rollouts:
            self.close(rollout, version)
        return self.grade(group, len(group.rollouts), flat, version)

    def play_open(self, version: int = 0, name: str = "a") -> None:
        """Play all groups that are open now."""
        for group in list(self.job(name).groups.values()):
            if group.is_unfinished and group.group_id in self.job(name).groups:
                self.play(group, version)

    def commit(self, step: int, name: str = "a", diverged: bool = False) -> list[Command]:
        attempt = plan(name).attempt_id
        return self.feed(StepCommitted(attempt, step, policy(step, name), diverged))

    def checkpoint(self, step: int, name: str = "a") -> list[Command]:
        name_ = CheckpointId(f"ckpt_{step}")
        return self.feed(CheckpointWritten(plan(name).attempt_id, step, name_))

    def opened(self) -> list[OpenGroup]:
        """All groups opened so far."""
        return self.found(OpenGroup, self.commands)

    def forked(self) -> list[ForkSandboxes]:
        """All forks so far."""
        return self.found(ForkSandboxes, self.commands)

    def placed(self) -> list[PlaceRollout]:
        """All placements so far."""
        return self.found(PlaceRollout, self.commands)

    def graded(self) -> list[GradeGroup]:
        """All gradings so far."""
        return self.found(GradeGroup, self.commands)


def policy(version: int, name: str = "a") -> PolicyRef:
    """A policy of a test attempt."""
    return policy_of(plan(name).attempt_id, version, 1)


def gid(ordinal: int, name: str = "a") -> GroupId:
    """Id of a test group."""
    return group_id(plan(name).attempt_id, ordinal)


def engine_id(index: int = 0, job: JobPlan | None = None) -> HostId:
    """Id of an engine host of a test job."""
    return host_id((job or plan()).attempt_id, f"engine{index}")


def trainer_id(job: JobPlan | None = None) -> HostId:
    """Id of the trainer host of a test job."""
    return host_id((job or plan()).attempt_id, "trainer")


def closed(
    rollout: RolloutRecord, version: int | None = 0, end: End = End.DONE, turns: int = 2
) -> RolloutClosed:
    """The close of a rollout's current try."""
    return RolloutClosed(
        rollout_id=rollout.rollout_id,
        try_=rollout.try_,
        hop=rollout.hop,
        end=end,
        oldest_version=version,
        newest_version=version,
        tokens=10 * turns,
        sampled_tokens=10 * turns,
        turns=turns,
    )


def held(rollout: RolloutRecord, turn: int = 0, version: int | None = None) -> HeldRollout:
    """What a host reports of a rollout that it holds."""
    return HeldRollout(rollout.rollout_id, rollout.try_, rollout.hop, turn, version)


def rid(ordinal: int, index: int = 0, name: str = "a") -> RolloutId:
    """Id of a test rollout."""
    return RolloutId(f"ro_{gid(ordinal, name).removeprefix('grp_')}_{index:03d}")
