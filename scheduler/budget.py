"""Holds jobs to their budgets: a warning once, then a pause with a checkpoint.

Used time is read from the job's events each time, so that a new leader, a pause or a restart loses
nothing of it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from domain.events import BudgetSpent, Event
from domain.ids import JobId
from scheduler.context import JobContext
from stores import events as job_events
from stores.system import budgets
from stores.unit_of_work import AsyncConnection, Database, LeaderFence

HOUR_S: Final = 3600.0

WARNING: Final = "job.budget_warning"
"""Event at `warn_at` of a limit, once for each limit that the job ever had."""


class BudgetWatch:
    """Looks at the jobs of `contexts` that have a budget."""

    def __init__(
        self,
        database: Database,
        term: int,
        contexts: Mapping[JobId, JobContext],
        feed: Callable[[Event], None],
    ) -> None:
        self._database = database
        self._fence = LeaderFence(term)
        self._contexts = contexts
        self._feed = feed
        self._warned: set[tuple[JobId, float]] = set()

    async def look(self) -> None:
        """One pass over all budgets."""
        limited = {
            job_id: (context.spec.budget, context.spec.budget.max_wall_hours)
            for job_id, context in self._contexts.items()
            if context.spec.budget.max_wall_hours is not None
        }
        if not limited:
            return
        async with self._database.begin() as connection:
            used = await budgets.held_seconds(connection, sorted(limited))
        for job_id, (budget, hours) in limited.items():
            spent = used.get(job_id, 0.0) / HOUR_S
            if hours is not None and spent >= hours:
                reason = f"budget: {spent:.4g} of {hours:g} hours with hosts are used"
                self._feed(BudgetSpent(job_id, reason))
            if hours is not None and spent >= hours * budget.warn_at:
                await self._warn(job_id, hours, spent)

    async def _warn(self, job_id: JobId, hours: float, spent: float) -> None:
        if (job_id, hours) in self._warned:
            return
        async with self._database.begin(self._fence) as connection:
            await self._say(connection, job_id, {"max_wall_hours": hours, "used_hours": spent})
        self._warned.add((job_id, hours))

    async def _say(
        self, connection: AsyncConnection, job_id: JobId, body: Mapping[str, float]
    ) -> None:
        """Append the warning, unless a former leader did."""
        if not await budgets.is_warned(connection, job_id, WARNING, body["max_wall_hours"]):
            await job_events.append(connection, job_id, WARNING, body)
