"""A new leader's first fact: everything that Postgres knows of unfinished jobs and hosts."""

from collections.abc import Collection
from dataclasses import replace

from domain.events import RestoredJob, StateRestored
from domain.ids import EVALUATION_ORDINAL_BASE, REPEAT_SPAN, JobId
from scheduler.context import JobContext
from scheduler.watch import JobWatch
from stores.system import jobs
from stores.unit_of_work import AsyncConnection, Database


async def restore(
    database: Database, watch: JobWatch, contexts: dict[JobId, JobContext]
) -> StateRestored:
    """Read unfinished jobs (their contexts land in `contexts`) and host leases."""
    async with database.begin() as connection:
        rows = await jobs.unfinished(connection)
    loaded = [context for row in rows if (context := await watch.load(row)) is not None]
    async with database.begin() as connection:
        restored = [await _job(connection, context) for context in loaded]
        hosts = await jobs.hosts(connection)
    return StateRestored(tuple(restored), hosts)


async def _job(connection: AsyncConnection, context: JobContext) -> RestoredJob:
    row, attempt = context.row, context.attempt_id
    steps = await jobs.policies(connection, attempt)
    written = await jobs.checkpoint_steps(connection, attempt)
    pending = await jobs.pending_groups(connection, attempt)
    groups = tuple(replace(one, task=context.task_number(one.group_id)) for one in pending)
    issued = await jobs.issued_ordinals(connection, attempt)
    return RestoredJob(
        plan=context.plan,
        generation=row.generation,
        desired=row.desired,
        state=row.state,
        base_step=row.base_step,
        committed_step=steps[-1].step if steps else row.base_step,
        policy=steps[-1].policy if steps else None,
        next_ordinal=next_after(row.next_ordinal, issued),
        unconsumed=tuple(o for o in row.unconsumed if o not in issued),
        groups=groups,
        checkpoint_step=written[-1][0] if written else None,
        evaluated_steps=await jobs.evaluated_steps(connection, attempt),
        observed_generation=row.observed_generation,
        reason=row.reason,
        wished_generation=row.desired_generation,
        policies=tuple(step.policy for step in steps),
        reached_step=await jobs.reached_step(connection, attempt, context.plan.target_eval),
        issued_evaluations=tuple(o for o in issued if o >= EVALUATION_ORDINAL_BASE),
    )


def next_after(start: int, issued: Collection[int]) -> int:
    """The next new training ordinal: above all that were issued, evaluations and repeats left out."""
    return max([start, *(ordinal + 1 for ordinal in issued if ordinal < REPEAT_SPAN)])
