"""What the leader finds by looking: leases, jobs that want attention, facts whose notice was lost.

Notifications only wake; everything here is level-triggered and may be repeated without harm.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from celery import Celery
from kombu.exceptions import OperationalError as BrokerAway

from domain.events import (
    CheckpointWritten,
    DesiredChanged,
    Event,
    HostLost,
    JobSubmitted,
    TrainerFailed,
)
from domain.ids import AttemptId, HostId, JobId, node_host_id
from domain.plan import JobLimits
from domain.states import Desired, HostKind
from infra.ids import IdSource
from infra.logging import get_logger
from infra.names import DELIVER_TASK, HOST_TASK, PLAN, TIDY_TASK, chore_task
from infra.settings import Settings
from scheduler.context import JobContext, JobUnreadable, load_context
from scheduler.hosts import Hosts
from scheduler.spec import plan_of, read_spec
from stores import events as job_events
from stores.blobs import Blobs
from stores.system import (
    assets,
    bills,
    coordination,
    deliveries,
    expiry,
    jobs,
    leases,
    preparation,
    retention,
    tenant_sandboxes,
)
from stores.unit_of_work import AsyncConnection, Database, LeaderFence

STARTS_MAX: Final = 12
"""Keepers started for one host row before its attempt fails as poison: loops must end."""

NODE_AGAIN_S: Final = 10.0
"""Between wake-ups of a node agent that started so often: it serves all jobs, so it is never given
up, but one that cannot live must not burn its machine."""

REDISPATCH_S: Final = 4.0
"""A wake-up that nobody answered is sent again; the broker may have been flushed."""


CHORE_AGAIN_S: Final = 15.0
"""An operation that nobody took up is sent again; chores start within a second or two."""

PLAN_WAKE_S: Final = 2 * CHORE_AGAIN_S
"""A plan waits minutes for those before it and is sent again meanwhile: its wake-ups must not pile up,
each would cost a process."""

CHORE_DEAD_S: Final = 320.0
"""A running chore is ended by its own worker before; after this the worker is gone."""

EXPIRE_S: Final = 5.0
"""Between two looks for what has had its time; nobody waits for it."""
DELIVER_AGAIN_S: Final = 5.0
"""Deliveries that nobody took up are sent for again; their process starts within a second or two."""

TIDY_AGAIN_S: Final = 3600.0
"""Between two looks at the event log's age, which counts in days."""

SEND_S: Final = 5.0
"""A broker that takes longer is away; the leader must not wait for it."""


class LeaseWatch:
    """Expires leases, notices raised epochs, wakes keepers."""

    def __init__(
        self,
        database: Database,
        hosts: Hosts,
        broker: Celery,
        term: int,
        feed: Callable[[Event], None],
    ) -> None:
        self._database = database
        self._hosts = hosts
        self._broker = broker
        self._fence = LeaderFence(term)
        self._feed = feed
        self._epochs: dict[HostId, int] = {}
        self._woken_at: dict[HostId, float] = {}
        self._log = get_logger()

    def remember(self, host: HostId, epoch: int) -> None:
        """The core knows this host at this epoch already (restored or joined)."""
        self._epochs[host] = max(epoch, self._epochs.get(host, 0))

    async def declare_nodes(self, count: int) -> None:
        """Node agents are always wanted."""
        async with self._database.begin(self._fence) as connection:
            for index in range(count):
                await leases.declare(connection, node_host_id(index), HostKind.NODE)

    async def look(self) -> None:
        """One pass over all leases."""
        async with self._database.begin(self._fence) as connection:
            expired = await leases.expire(connection)
            rows = await leases.live(connection, REDISPATCH_S)
            due = [row for row in rows if row.wants_dispatch and self._may_start(row)]
            for row in due:
                await leases.mark_dispatched(connection, row.host_id, row.epoch)
        now = time.monotonic()
        self._woken_at.update((row.host_id, now) for row in due)
        for host, epoch in expired:
            self._log.warning("lease.expired", host_id=host, epoch=epoch)
        await self._notice(rows)
        for row in due:
            await wake(self._broker, HOST_TASK, [row.host_id, row.epoch])

    def _may_start(self, row: leases.LeaseRow) -> bool:
        """A job's host starts a bounded number of times; a node agent without end, in the end slowly."""
        if row.starts < STARTS_MAX:
            return True
        woken_at = self._woken_at.get(row.host_id, -math.inf)
        return row.attempt_id is None and time.monotonic() - woken_at >= NODE_AGAIN_S

    async def _notice(self, rows: list[leases.LeaseRow]) -> None:
        for row in rows:
            known = self._epochs.get(row.host_id)
            self._epochs[row.host_id] = row.epoch
            if known is not None and known < row.epoch:
                cause = row.last_cause or "the lease was freed"
                self._feed(HostLost(row.host_id, known, cause))
                await self._hosts.drop(row.host_id, known, cause)
            is_poison = row.starts >= STARTS_MAX and row.owner is None and row.desired == "up"
            if is_poison and row.attempt_id is not None:
                self._feed(TrainerFailed(row.attempt_id, "host_poison", row.last_cause or ""))


class ChoreWatch:
    """Wakes workers for operations and webhooks, settles what waits for failed ones, and bills."""

    def __init__(self, database: Database, broker: Celery, term: int) -> None:
        self._database = database
        self._broker = broker
        self._fence = LeaderFence(term)
        self._ids = IdSource()
        self._expired_at = -math.inf
        self._delivered_at = -math.inf
        self._tidied_at = -math.inf

    async def look(self) -> None:
        """One pass over open operations, due deliveries, what expires, and ended attempts."""
        if time.monotonic() - self._expired_at >= EXPIRE_S:
            await self.expire()
            self._expired_at = time.monotonic()
        async with self._database.begin(self._fence) as connection:
            due = await preparation.due_operations(connection, CHORE_AGAIN_S, CHORE_DEAD_S)
            await preparation.settle_failed(connection)
            await assets.settle_failed(connection)
        for operation in due:
            expires = PLAN_WAKE_S if operation.kind == PLAN else None
            task = chore_task(operation.kind)
            await wake(self._broker, task, [operation.operation_id], expires=expires)
        await self.settle()
        await self._look_at_deliveries()
        if time.monotonic() - self._tidied_at >= TIDY_AGAIN_S:
            self._tidied_at = time.monotonic()
            await wake(self._broker, TIDY_TASK, [], expires=TIDY_AGAIN_S)

    async def settle(self) -> None:
        """Bill attempts that hold nothing any more, and expire the checkpoints that they need not keep.

        In one transaction: what is billed is never looked at again, and its trainer is gone.
        """
        gone = []
        # Without the fence, whose lock a heartbeat waits for: whoever settles writes the same rows.
        async with self._database.begin() as connection:
            billed = await bills.settle(connection)
            for attempt in billed:
                gone += await retention.expire_surplus(connection, attempt)
        for attempt in billed:
            get_logger().info("bill.settled", attempt_id=attempt)
        for checkpoint in gone:
            get_logger().info("checkpoint.expired", checkpoint_id=checkpoint)

    async def _look_at_deliveries(self) -> None:
        now = time.monotonic()
        if now - self._delivered_at < DELIVER_AGAIN_S:
            return
        async with self._database.begin() as connection:
            is_due = await deliveries.is_due(connection)
        if is_due:
            self._delivered_at = now
            # With workers too busy to take them up, wake-ups must not pile up behind one another.
            await wake(self._broker, DELIVER_TASK, [], expires=2 * DELIVER_AGAIN_S)

    async def expire(self) -> None:
        """Expire what is past its age, and ask for chores that delete what is gone."""
        async with self._database.begin(self._fence) as connection:
            gone = await expiry.expire_due(connection)
            ended = await tenant_sandboxes.sweep(connection)
            for job, project in await expiry.jobs_to_clean(connection):
                await expiry.ask_to_clean(connection, self._ids.new("op"), job, project)
        for checkpoint in gone:
            get_logger().info("checkpoint.expired", checkpoint_id=checkpoint)
        for sandbox in ended:
            get_logger().info("sandbox.swept", sandbox_id=sandbox)


async def wake(
    broker: Celery, task: str, arguments: list[object], expires: float | None = None
) -> None:
    """Send a wake-up; one that is lost is sent again later."""
    try:
        async with asyncio.timeout(SEND_S):
            await asyncio.to_thread(
                broker.send_task, task, args=arguments, expires=expires, retry=False
            )
    except (BrokerAway, TimeoutError, OSError) as error:
        get_logger().warning("broker.away", task=task, cause=str(error))


class JobWatch:
    """Takes up jobs whose generation is unanswered and facts that were only written."""

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        settings: Settings,
        term: int,
        contexts: dict[JobId, JobContext],
        *,
        feed: Callable[[Event], None],
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._settings = settings
        self._fence = LeaderFence(term)
        self._contexts = contexts
        self._feed = feed

    async def look(self) -> None:
        """Answer new generations: submissions, restarts, pause, resume, cancel."""
        async with self._database.begin() as connection:
            rows = await jobs.wanting_attention(connection)
        for row in rows:
            await self._take_up(row)

    async def _take_up(self, row: jobs.JobRow) -> None:
        known = self._contexts.get(row.job_id)
        if known is None or known.attempt_id != row.attempt_id:
            context = await self.load(row)
            if context is None:
                return
            self._feed(
                JobSubmitted(
                    context.plan, row.generation, row.base_step, row.next_ordinal, row.unconsumed
                )
            )
            if row.desired is Desired.RUN:
                return
            known = context
        limits = self._limits_now(known, row)
        is_wish = row.desired_generation > row.observed_generation
        self._feed(DesiredChanged(row.job_id, row.desired, row.generation, limits, is_wish))

    def _limits_now(self, known: JobContext, row: jobs.JobRow) -> JobLimits:
        """The limits that the row's spec has now; the job's context gets them too."""
        spec = read_spec(row.spec)
        templates = known.plan.templates
        plan = replace(plan_of(row, spec, self._settings), templates=templates)
        self._contexts[row.job_id] = replace(known, row=row, spec=spec, plan=plan)
        return plan.limits

    async def load(self, row: jobs.JobRow) -> JobContext | None:
        """Load a job's context; an unreadable job fails with its cause and is not taken up."""
        try:
            context = await load_context(self._database, self._blobs, row, self._settings)
        except JobUnreadable as error:
            await self._fail(row, error)
            return None
        self._contexts[row.job_id] = context
        return context

    async def _fail(self, row: jobs.JobRow, error: JobUnreadable) -> None:
        failure = coordination.failed(row.job_id, row.generation, error.code, str(error))
        async with self._database.begin(self._fence) as connection:
            await coordination.set_job_state(connection, failure)
            await coordination.end_attempt(connection, row.attempt_id)
            body = {"state": "failed", "failure_code": error.code, "hint": str(error)}
            await job_events.append(connection, row.job_id, "job.state", body)

    async def sweep(self) -> None:
        """Feed every fact of running attempts whose notice may have been lost."""
        attempts = [context.attempt_id for context in self._contexts.values()]
        if not attempts:
            return
        async with self._database.begin() as connection:
            facts: list[Event] = []
            facts += await jobs.closed_not_graded(connection, attempts)
            facts += await jobs.graded_not_assigned(connection, attempts)
            for attempt in attempts:
                facts += await self._of_attempt(connection, attempt)
        for fact in facts:
            self._feed(fact)

    async def _of_attempt(self, connection: AsyncConnection, attempt: AttemptId) -> list[Event]:
        newest = await jobs.newest_step(connection, attempt)
        written = await jobs.checkpoint_steps(connection, attempt)
        facts: list[Event] = [] if newest is None or newest.step == 0 else [newest]
        facts += [CheckpointWritten(attempt, step, checkpoint) for step, checkpoint in written[-1:]]
        return facts
