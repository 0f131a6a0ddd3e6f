"""A virtual-clock world around the coordinator: executes its commands against modelled hosts.

    commands -> rows and machines -> delayed events -> accept, step -> commands

Deterministic: one heap of (time, sequence). Faults are calls: `kill`, `disconnect`, `restart_leader`.
The world itself fails on a double effect, so a test only states what the job must reach.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from domain.commands import (
    AssignGroup,
    CloseRollout,
    CloseStep,
    Command,
    DropGroup,
    EndTry,
    FinishEvaluation,
    ForkSandboxes,
    GradeGroup,
    GrantGang,
    NoteJob,
    OpenGroup,
    PlaceRollout,
    ReleaseGang,
    ReleaseSandboxes,
    ReplaceHost,
    ReplaceMember,
    SetJobState,
    SetRanks,
    SuspendRollout,
    SyncEngine,
    WriteCheckpoint,
)
from domain.events import (
    CheckpointWritten,
    DesiredChanged,
    EvaluationScored,
    Event,
    HostLost,
    JobSubmitted,
    StepCommitted,
    Tick,
)
from domain.ids import (
    AttemptId,
    CheckpointId,
    GroupId,
    HostId,
    JobId,
    RolloutId,
    host_id,
    node_host_id,
)
from domain.plan import JobLimits, JobPlan, Pool
from domain.states import TERMINAL, Desired, End, HostKind
from scheduler.core.coordinator import Coordinator
from tests.simulation.machines import Engine, Machine, Node, Trainer, make
from tests.simulation.roomy import RoomyNode
from tests.simulation.rows import PENDING, GroupRow, JobRow, LeaseRow, Rows


@dataclass(slots=True)
class Workload:
    """How long things take and what goes wrong inside them; override what a test needs."""

    turn_s: Callable[[RolloutId, int], float] = lambda rollout, turn: 1.0
    turns: Callable[[RolloutId], int] = lambda rollout: 2
    failure: Callable[[RolloutId, int, int], End | None] = lambda rollout, try_, turn: None
    is_flat: Callable[[GroupId], bool] = lambda group: False
    grade_fails: Callable[[GroupId, int], bool] = lambda group, epoch: False
    sync_fails: Callable[[HostId, int], bool] = lambda host, version: False
    diverges: Callable[[int], bool] = lambda step: False
    refuses: Callable[[HostId, GroupId], bool] = lambda node, group: False
    score: Callable[[int], float | None] = lambda step: None
    fork_s: float = 0.1
    grade_s: float = 0.2
    step_s: float = 0.5
    sync_s: float = 0.2
    checkpoint_s: float = 0.3
    start_s: float = 1.0
    lease_s: float = 2.0
    tick_s: float = 1.0


@dataclass(slots=True)
class World:
    """One leader, its rows, its hosts."""

    pool: Pool
    workload: Workload = field(default_factory=Workload)
    nodes: int = 1
    node_bytes: tuple[int, ...] = ()
    """Of each node, for nodes that say what room they have (`roomy.py`)."""
    slots: int = 8
    kv_tokens: int = 0
    """What each engine says it holds; with it they let go of rollouts between turns."""
    now: float = 0.0
    rows: Rows = field(default_factory=Rows)
    machines: dict[HostId, Machine] = field(default_factory=dict)
    log: list[tuple[float, Command]] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    leader: Coordinator | None = None
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.leader = Coordinator(self.pool, checking=True)
        for index in range(self.nodes):
            self._want_host(LeaseRow(node_host_id(index), HostKind.NODE, None, None))
        self._tick()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Schedule an action."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + delay, self._sequence, act))

    def run(self, until: Callable[[], bool], within_s: float = 10_000.0) -> None:
        """Let time pass until the predicate holds; fails when it does not within the bound."""
        limit = self.now + within_s
        while not until():
            assert self._heap, "nothing left to happen"
            time, _, act = heapq.heappop(self._heap)
            assert time <= limit, f"not reached within {within_s} s: {self.picture()}"
            self.now = max(self.now, time)
            act()

    def run_for(self, seconds: float) -> None:
        """Let this much time pass."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        self.now = end

    def submit(self, plan: JobPlan, base_step: int = 0, ordinals: tuple[int, ...] = ()) -> JobRow:
        """A user submits a job."""
        job = JobRow(plan, base_step=base_step, committed=base_step, start_unconsumed=ordinals)
        job.checkpoint_step = base_step or None
        job.start_ordinal = max(ordinals, default=-1) + 1
        self.rows.jobs[plan.job_id] = job
        self._hear_wishes()
        return job

    def desire(self, job: JobRow, desired: Desired) -> None:
        """The user wants something else."""
        job.desired = desired
        job.generation += 1
        job.wished = job.generation
        self._hear_wishes()

    def limit(self, job: JobRow, limits: JobLimits) -> None:
        """The user changes what may change while the job runs."""
        job.plan = replace(job.plan, max_steps=limits.max_steps, priority=limits.priority)
        job.generation += 1
        self._hear_wishes()

    def kill(self, host: HostId) -> None:
        """The process dies; its lease expires, a new epoch starts later."""
        machine = self.machines.pop(host, None)
        if machine is None:
            return
        machine.is_alive = machine.is_connected = False
        self.after(self.workload.lease_s, lambda: self._expire(host, machine.epoch))

    def disconnect(self, host: HostId) -> None:
        """The link breaks: what is on it is lost, then the host dials again."""
        machine = self.machines.get(host)
        if machine is None or not machine.is_connected:
            return
        machine.is_connected = False
        machine.connection += 1
        machine.after(self.workload.tick_s / 2, lambda: self._dial(machine))

    def restart_leader(self, down_s: float = 1.0) -> None:
        """The leader dies with everything in its memory; a standby reads the rows."""
        self.leader = None
        for machine in self.machines.values():
            machine.is_connected = False
            machine.connection += 1
        self.after(down_s, self._lead)

    def deliver_from(self, machine: Machine, event: Event) -> None:
        """Deliver on the machine's present link."""
        connection = machine.connection

        def arrive() -> None:
            if machine.connection == connection and machine.is_connected:
                self.deliver(event)

        self.after(0.01, arrive)

    def deliver(self, event: Event) -> None:
        """Hand an event to the leader and execute what it decides."""
        if self.leader is None:
            return
        self.events.append((self.now, event))
        if self.leader.accept(event) is not None:
            return
        for command in self.leader.step(self.now, event):
            self.log.append((self.now, command))
            self._execute(command)

    def holds(self, node: HostId, rollout: RolloutId, try_: int) -> bool:
        """Whether this node agent holds the sandbox of this try."""
        machine = self.machines.get(node)
        return isinstance(machine, Node) and (rollout, try_) in machine.holds

    def release(self, rollout: RolloutId) -> None:
        """All sandboxes of the rollout are given back."""
        for machine in self.machines.values():
            if isinstance(machine, Node):
                machine.holds = {key: None for key in machine.holds if key[0] != rollout}
            if isinstance(machine, RoomyNode):
                machine.making = {key: None for key in machine.making if key[0] != rollout}

    def commands(self, kind: type[Command]) -> list[Command]:
        """All commands of one kind so far."""
        return [command for _, command in self.log if isinstance(command, kind)]

    def _tick(self) -> None:
        self.deliver(Tick())
        self._sweep()
        self.after(self.workload.tick_s, self._tick)

    def _sweep(self) -> None:
        """Facts that are only written: closed, graded, committed, checkpointed."""
        for job in self.rows.jobs.values():
            if job.state in TERMINAL:
                continue
            attempt = job.plan.attempt_id
            for group in self.rows.groups_of(attempt):
                self._sweep_group(group)
            if job.policy is not None and job.committed > job.base_step:
                self.deliver(StepCommitted(attempt, job.committed, job.policy))
            if job.checkpoint_step is not None:
                name = CheckpointId(f"ckpt_{job.checkpoint_step}")
                self.deliver(CheckpointWritten(attempt, job.checkpoint_step, name))

    def _sweep_group(self, group: GroupRow) -> None:
        if group.disposition != PENDING or not group.is_closed:
            return
        if group.graded is None:
            for row in group.rollouts:
                self.deliver(row.closed(reread=True))
        elif group.step is None:
            self.deliver(replace(group.graded, reread=True))

    def _hear_wishes(self) -> None:
        """Level-triggered: every wish above the observed generation, new jobs first."""
        for job in self.rows.jobs.values():
            if self.leader is None or job.generation <= job.observed:
                continue
            if job.plan.job_id not in self.leader.state.jobs and job.state not in TERMINAL:
                self.deliver(
                    JobSubmitted(
                        job.plan,
                        1,
                        job.base_step,
                        job.start_ordinal,
                        job.start_unconsumed,
                    )
                )
            if job.generation > job.observed:
                is_wish = job.wished > job.observed
                wish = (job.plan.job_id, job.desired, job.generation)
                self.deliver(DesiredChanged(*wish, job.plan.limits, is_wish))

    def _lead(self) -> None:
        self.leader = Coordinator(self.pool, checking=True)
        self.deliver(self.rows.restored())
        self._hear_wishes()
        for machine in list(self.machines.values()):
            machine.after(0.05, partial(self._dial, machine))

    def _dial(self, machine: Machine) -> None:
        if self.leader is None or machine.is_connected:
            return
        machine.is_connected = True
        for event in machine.snapshot():
            machine.send(event)

    def _want_host(self, lease: LeaseRow) -> None:
        known = self.rows.leases.get(lease.host_id)
        if known is not None and known.is_up:
            return
        if known is not None:
            known.is_up, known.epoch = True, known.epoch + 1
        lease = known or lease
        self.rows.leases[lease.host_id] = lease
        self.after(self.workload.start_s, lambda: self._start(lease, lease.epoch))

    def _start(self, lease: LeaseRow, epoch: int) -> None:
        if not lease.is_up or lease.epoch != epoch or lease.host_id in self.machines:
            return
        lease.is_claimed = True
        machine = make(self, lease, self.slots)
        self.machines[lease.host_id] = machine
        machine.after(0.05, lambda: self._dial(machine))

    def _expire(self, host: HostId, epoch: int) -> None:
        """The lease ran out: the leader hears it when there is one; the next epoch starts."""
        lease = self.rows.leases[host]
        if lease.epoch != epoch or not lease.is_up:
            return
        lease.epoch, lease.is_claimed = epoch + 1, False
        self.deliver(HostLost(host, epoch, "lease_expired"))
        self.after(self.workload.start_s, lambda: self._start(lease, lease.epoch))

    def _execute(self, command: Command) -> None:
        match command:
            case SetJobState() | NoteJob() | FinishEvaluation():
                self._write_job(command)
            case GrantGang() | ReleaseGang() | ReplaceHost():
                self._manage_hosts(command)
            case OpenGroup():
                self.rows.open_group(command, self.now)
            case EndTry() | CloseRollout() | PlaceRollout():
                self._move_rollout(command)
            case SuspendRollout():
                engine = self._reach(command.host_id, command.epoch)
                if isinstance(engine, Engine):
                    engine.runs.pop(command.rollout_id, None)
            case DropGroup():
                self.rows.drop(command.group_id, command.reason)
            case AssignGroup():
                self.rows.assign(command)
            case ReplaceMember():
                self.rows.drop(command.group_id, command.reason)
            case GradeGroup():
                self._grade(command)
            case ReleaseSandboxes():
                node = self._reach(command.node, command.node_epoch)
                if isinstance(node, RoomyNode):
                    node.release(command)
            case ForkSandboxes() | SetRanks() | SyncEngine() | CloseStep() | WriteCheckpoint():
                self._tell_machine(command)

    def _write_job(self, command: SetJobState | NoteJob | FinishEvaluation) -> None:
        if isinstance(command, NoteJob):
            self.rows.jobs[command.job_id].notes.append((command.type, dict(command.body)))
        elif isinstance(command, FinishEvaluation):
            job = self.rows.job_of(command.attempt_id)
            assert command.step not in job.evaluated
            job.evaluated.append(command.step)
            for row in self.rows.groups_of(command.attempt_id):
                is_meant = row.opened.policy_version == command.step
                if is_meant and row.opened.purpose.value == "evaluation":
                    row.disposition = f"evaluated({command.step})"
            attempt, step = command.attempt_id, command.step
            selected = job.scores[step] = self.workload.score(step)
            self.after(0.0, lambda: self.deliver(EvaluationScored(attempt, step, selected)))
        else:
            job = self.rows.jobs[command.job_id]
            job.state, job.observed = command.state, command.observed_generation
            job.reason, job.queue_position = command.reason, command.queue_position
            job.failure_code = command.failure_code
            if not job.states or job.states[-1] is not command.state:
                job.states.append(command.state)

    def _manage_hosts(self, command: GrantGang | ReleaseGang | ReplaceHost) -> None:
        if isinstance(command, ReplaceHost):
            machine = self.machines.get(command.host_id)
            if machine is not None and machine.epoch == command.epoch:
                self.kill(command.host_id)
            return
        if isinstance(command, GrantGang):
            roles = ["trainer", *(f"engine{index}" for index in range(command.engines))]
            for role in roles:
                name = host_id(command.attempt_id, role)
                kind = HostKind.TRAINER if role == "trainer" else HostKind.ENGINE
                self._want_host(LeaseRow(name, kind, command.attempt_id, command.job_id))
            return
        self._release_attempt(command.attempt_id)

    def _release_attempt(self, attempt: AttemptId) -> None:
        for lease in self.rows.leases.values():
            if lease.attempt_id == attempt and lease.is_up:
                lease.is_up = lease.is_claimed = False
                machine = self.machines.pop(lease.host_id, None)
                if machine is not None:
                    machine.is_alive = machine.is_connected = False
        prefix = attempt.removeprefix("att_")
        for machine in self.machines.values():
            if isinstance(machine, Node):
                machine.holds = {k: None for k in machine.holds if prefix not in k[0]}
            if isinstance(machine, RoomyNode):
                machine.making = {k: None for k in machine.making if prefix not in k[0]}

    def _move_rollout(self, command: EndTry | CloseRollout | PlaceRollout) -> None:
        row = self.rows.rollout(command.rollout_id)
        if row.end is not None:
            return
        if isinstance(command, PlaceRollout):
            self.rows.place(command)
            machine = self._reach(command.host_id, command.epoch)
            if isinstance(machine, Engine):
                machine.place(command)
            return
        self.release(command.rollout_id)
        if isinstance(command, EndTry):
            self.rows.end_try(command)
            return
        assert (row.try_, row.hop) == (command.try_, command.hop), command
        row.end = command.end
        closed = row.closed()
        self.after(0.01, lambda: self.deliver(closed))

    def _grade(self, command: GradeGroup) -> None:
        row = self.rows.groups[command.group_id]
        assert row.is_closed, command
        if row.graded is not None:
            return
        row.grade_epoch = command.grade_epoch
        machine = self._reach(command.node, command.node_epoch)
        if isinstance(machine, Node):
            machine.grade(command)

    def _tell_machine(
        self, command: ForkSandboxes | SetRanks | SyncEngine | CloseStep | WriteCheckpoint
    ) -> None:
        if isinstance(command, ForkSandboxes):
            node = self._reach(command.node, command.node_epoch)
            if isinstance(node, Node):
                node.fork(command)
        elif isinstance(command, SetRanks | SyncEngine):
            engine = self._reach(command.host_id, command.epoch)
            if isinstance(engine, Engine):
                engine.obey(command)
        else:
            trainer = self.machines.get(host_id(command.attempt_id, "trainer"))
            if isinstance(trainer, Trainer) and trainer.is_connected:
                trainer.obey(command)

    def _reach(self, host: HostId, epoch: int) -> Machine | None:
        machine = self.machines.get(host)
        is_there = machine is not None and machine.epoch == epoch and machine.is_connected
        return machine if is_there else None

    def picture(self) -> str:
        """Where the jobs stand, for a failure's message."""
        jobs = [(job.state, job.committed, job.notes[-1:]) for job in self.rows.jobs.values()]
        views = (
            [] if self.leader is None else [self.leader.view(JobId(job)) for job in self.rows.jobs]
        )
        return f"{jobs} {views}"
