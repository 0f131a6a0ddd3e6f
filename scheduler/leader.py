"""One term of leadership: restore, admit hosts, then receive, decide, execute until it ends.

Loops: each consumes one thing and is woken by one thing.

    executor   commands of the core          woken by feed
    event log  steps that were taken         every LOOK_S of scheduler/event_log.py
    leases     host_lease rows               every LOOK_S
    jobs       unanswered generations        every LOOK_S
    budgets    jobs with a budget            every SWEEP_S
    sweep      facts whose notice was lost   every SWEEP_S
    tick       time for the core             every TICK_S
    progress   job.progress documents        every SWEEP_S
    schedule   schedules of jobs             every SWEEP_S
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar, get_args

from celery import Celery

from domain.errors import StoreUnavailable
from domain.events import (
    EngineSynced,
    EngineSyncFailed,
    Event,
    HostJoined,
    NodeReported,
    RolloutClosed,
    SandboxReady,
    Tick,
    TrainerReady,
    TryFailed,
)
from domain.ids import AttemptId, HostId, JobId, attempt_of, group_of
from domain.plan import Pool
from domain.states import End, HostKind
from domain.wire import ForkRefused, TurnReports
from infra import failpoints
from infra.logging import get_logger
from infra.pool_frames import RoomRefused
from infra.settings import Settings
from scheduler import room_refusals
from scheduler.budget import BudgetWatch
from scheduler.context import JobContext
from scheduler.core.coordinator import Coordinator
from scheduler.event_log import EventLog
from scheduler.executor import Executor
from scheduler.hosts import Connected, Hosts
from scheduler.progress import Throughput, progress_of
from scheduler.recovery import restore
from scheduler.schedule import ScheduleWriter
from scheduler.watch import ChoreWatch, JobWatch, LeaseWatch
from stores.blobs import Blobs
from stores.system import jobs, leases
from stores.system.leadership import Term
from stores.unit_of_work import Database, LeaderFence

LOOK_S: Final = 0.25
"""How late the leader notices a new job or a freed lease."""

SWEEP_S: Final = 1.0
"""How late a fact is found whose notification was lost."""

TICK_S: Final = 0.5
"""Granularity of back-off, drain and watchdog."""

RETRY_S: Final = 0.2
"""Between attempts while the database is away."""

T = TypeVar("T")

EVENTS: Final = get_args(Event)

FAILPOINT_EVENT: Final = "leader.event"


class Leader:
    """The coordinator's shell for one term."""

    def __init__(
        self, settings: Settings, database: Database, hosts: Hosts, broker: Celery, term: Term
    ) -> None:
        self._settings = settings
        self._database = database
        self._hosts = hosts
        self._term = term
        self._contexts: dict[JobId, JobContext] = {}
        pool = settings.pool
        capacity = Pool(
            engines=pool.engines,
            trainers=pool.trainers,
            sandboxes=settings.limits.sandboxes * pool.nodes,
            grading_reserve=1,
            tenants=settings.tenants,
        )
        self._core = Coordinator(capacity, checking=settings.is_checking)
        blobs = Blobs(settings.object_store_url)
        self._event_log = EventLog(
            blobs, term.number, capacity, settings.is_checking, refused=self._core.refusals
        )
        self._throughput = Throughput()
        self._schedule = ScheduleWriter(
            self._core,
            database,
            hosts,
            term.number,
            self._contexts,
            throughput=self._throughput,
        )
        self._facts: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._log = get_logger().bind(term=term.number)
        self._jobs = JobWatch(
            database, blobs, settings, term.number, self._contexts, feed=self.feed
        )
        self._budgets = BudgetWatch(database, term.number, self._contexts, self.feed)
        self._leases = LeaseWatch(database, hosts, broker, term.number, self.feed)
        self._chores = ChoreWatch(database, broker, term.number)
        self._executor = Executor(
            database,
            hosts,
            term.number,
            self._contexts,
            feed=self.feed,
            data_position=self._core.data_position,
        )

    async def run(self) -> None:
        """Lead until fenced out (FencedOut) or cancelled."""
        try:
            await self._lead()
        finally:
            await self._event_log.close()

    async def _lead(self) -> None:
        restored = await self._until_stored(
            lambda: restore(self._database, self._jobs, self._contexts)
        )
        for host in restored.hosts:
            self._leases.remember(host.host_id, host.epoch)
        self.feed(restored)
        await self._until_stored(lambda: self._leases.declare_nodes(self._settings.pool.nodes))
        self._hosts.lead(self._term)
        self._log.info("leader.started", jobs=len(restored.jobs))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._execute())
            group.create_task(self._event_log.run())
            group.create_task(self._hosts.beat())
            group.create_task(self._every(LOOK_S, self._leases.look))
            group.create_task(self._every(LOOK_S, self._jobs.look))
            group.create_task(self._every(LOOK_S, self._chores.look))
            group.create_task(self._every(SWEEP_S, self._jobs.sweep))
            group.create_task(self._every(SWEEP_S, self._budgets.look))
            group.create_task(self._every(SWEEP_S, self._write_progress))
            group.create_task(self._every(SWEEP_S, self._schedule.write))
            group.create_task(self._every(TICK_S, self._tick))

    def feed(self, event: Event) -> None:
        """Take one fact; the executor's loop folds it in. Never waits."""
        self._facts.append(event)
        self._wake.set()

    async def key_of(self, host: HostId, epoch: int) -> bytes | None:
        """The key hash of a claimed lease, for the handshake."""
        try:
            async with self._database.begin() as connection:
                return await leases.key_of(connection, host, epoch)
        except StoreUnavailable:
            return None

    def on_snapshot(self, joined: HostJoined) -> None:
        """A host proved itself and told what it holds."""
        self._leases.remember(joined.host_id, joined.epoch)
        self.feed(joined)

    def on_frame(self, peer: Connected, frame: object) -> None:
        """A frame of a proven host: a fact, checked against the connection's identity."""
        failpoints.hit(FAILPOINT_EVENT)
        if isinstance(frame, RoomRefused):
            room_refusals.note(peer, frame)
            self.feed(room_refusals.as_event(peer, frame))
            self._log.info(
                "fork.refused", group_id=frame.group_id, rule=frame.rule, cause=frame.cause
            )
        elif isinstance(frame, ForkRefused):
            self._on_refused(frame)
        elif isinstance(frame, TurnReports):
            self._on_turns(frame)
        elif isinstance(frame, TryFailed) and peer.kind is HostKind.NODE:
            self.feed(self._with_hop(frame))
        elif isinstance(frame, SandboxReady) and self._is_own(peer, frame):
            peer.refused.pop(frame.rollout_id, None)
            self.feed(self._with_task(frame))
        elif isinstance(frame, EVENTS) and self._is_own(peer, frame):
            self.feed(frame)
        else:
            self._log.warning("frame.refused", host_id=peer.host_id, kind=type(frame).__name__)

    def _is_own(self, peer: Connected, event: object) -> bool:
        """A host speaks only for itself and for its own epoch."""
        match event:
            case EngineSynced() | EngineSyncFailed() | TrainerReady():
                return event.host_id == peer.host_id and event.epoch == peer.epoch
            case SandboxReady():
                return event.node == peer.host_id and event.node_epoch == peer.epoch
            case NodeReported():
                return event.host_id == peer.host_id and event.epoch == peer.epoch
            case HostJoined():
                return False
            case _:
                return True

    def _on_turns(self, reports: TurnReports) -> None:
        for finished in reports.finished:
            self.feed(finished)
        for sampled in reports.sampled:
            self.feed(sampled)

    def _on_refused(self, refused: ForkRefused) -> None:
        if refused.transient:
            self._log.info("fork.refused", group_id=refused.group_id, cause=refused.cause)
            return
        for rollout, try_ in refused.members:
            failed = TryFailed(rollout, try_, 0, End.SANDBOX_LOST, refused.cause)
            self.feed(self._with_hop(failed))

    def _with_hop(self, failed: TryFailed) -> TryFailed:
        """A node agent knows the try but not always the newest hop; the try alone fences it."""
        found = self._core.state.find_rollout(failed.rollout_id)
        return failed if found is None else replace(failed, hop=found[2].hop)

    def _with_task(self, ready: SandboxReady) -> SandboxReady:
        """Which task a group works on is the leader's to say, whatever a node claims."""
        found = self._core.state.find_rollout(ready.rollout_id)
        context = None if found is None else self._contexts.get(found[0].plan.job_id)
        if found is None or context is None:
            return replace(ready, task=None)
        return replace(ready, task=context.task_number(found[1].group_id))

    async def _execute(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._facts:
                self._fold(self._facts.popleft())
            while self._executor.pending:
                try:
                    await self._executor.run_batch()
                except StoreUnavailable as away:
                    self._log.warning("store.away", cause=str(away))
                    await asyncio.sleep(RETRY_S)

    def _fold(self, event: Event) -> None:
        refusal = self._core.accept(event)
        if refusal is not None:
            self._log.debug("event.refused", kind=type(event).__name__, reason=str(refusal))
            return
        if isinstance(event, RolloutClosed):
            self._throughput.count(
                attempt_of(group_of(event.rollout_id)), event.sampled_tokens, time.monotonic()
            )
        now, quarantined = time.time(), None
        try:
            commands = self._core.step(now, event)
        except AssertionError:
            quarantined = job = self._core.suspect or self._job_of(event)
            self._log.exception("core.assertion", kind=type(event).__name__, job_id=job)
            if job is None:
                raise
            self._log.error("job.quarantined", job_id=job, state=repr(self._core.dump(job)))
            commands = self._core.quarantine(job)
        self._event_log.note(now, event, commands, quarantined)
        self._executor.enqueue(commands)

    def _job_of(self, event: Event) -> JobId | None:
        job = getattr(event, "job_id", None)
        if job is not None:
            return JobId(job)
        attempt = getattr(event, "attempt_id", None)
        group = getattr(event, "group_id", None)
        rollout = getattr(event, "rollout_id", None)
        if rollout is not None:
            group = group_of(rollout)
        if group is not None:
            attempt = attempt_of(group)
        return self._job_of_attempt(attempt)

    def _job_of_attempt(self, attempt: AttemptId | None) -> JobId | None:
        return next(
            (one.job_id for one in self._contexts.values() if one.attempt_id == attempt), None
        )

    async def _tick(self) -> None:
        self.feed(Tick())

    async def _write_progress(self) -> None:
        now = time.monotonic()
        documents = {}
        for job_id, context in list(self._contexts.items()):
            view = self._core.view(job_id)
            if view is None:
                self._retire(context)
                continue
            rate = self._throughput.rate(context.attempt_id, now)
            documents[job_id] = progress_of(view, context.plan, rate, self._hosts)
        if not documents:
            return
        async with self._database.begin(LeaderFence(self._term.number)) as connection:
            for job_id, document in documents.items():
                await jobs.write_progress(connection, job_id, document)

    def _retire(self, context: JobContext) -> None:
        """The core is done with the job; what it said last is executed before it is forgotten."""
        if not self._executor.pending and not self._facts:
            del self._contexts[context.job_id]
            self._throughput.forget(context.attempt_id)

    async def _every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await action()
            except StoreUnavailable as away:
                self._log.warning("store.away", cause=str(away))
            await asyncio.sleep(seconds)

    async def _until_stored(self, action: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await action()
            except StoreUnavailable as away:
                self._log.warning("store.away", cause=str(away))
                await asyncio.sleep(RETRY_S)
