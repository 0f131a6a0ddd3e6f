"""Bills: where the seconds of a job went. Settled lines of ended attempts, computed ones of the rest.

Read from facts that outlive their processes: intervals of hosts and sandboxes, measures of
placements, steps. `domain.billing` says which second goes where.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Select, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.billing import (
    Bucket,
    HostSpan,
    HostUse,
    Line,
    Opened,
    Resource,
    Share,
    host_lines,
    lines_of,
    merged,
)
from domain.states import INFRASTRUCTURE_ENDS, HostKind
from stores import tables as t
from stores.secret_tables import judge_use

interval, hop, rollout, ended_try = t.host_interval, t.rollout_hop, t.rollout, t.rollout_try

STEP_S = "trainer_busy_s"
"""Metric of a step: seconds in which the trainer worked on it."""

UPDATE_S = "update_s"
"""Metric of a step: the part of them in which weights were updated, stored and probed."""

SYNC_S = "sync_s"
"""Metric of a step: seconds until the first engine served its weights, from the engine's order on."""

CHECKPOINT_S = "checkpoint_s"
"""Metric of a step: seconds in which the trainer wrote its checkpoint."""

KINDS: Mapping[Resource, HostKind] = {
    Resource.ENGINE: HostKind.ENGINE,
    Resource.TRAINER: HostKind.TRAINER,
}


@dataclass(frozen=True, slots=True)
class JobBill:
    """Every resource and bucket once; final when all attempts have ended and were settled."""

    lines: Sequence[Line]
    is_final: bool


async def of_job(connection: AsyncConnection, project_id: str, job_id: str) -> JobBill:
    """The bill of a job of the project."""
    attempts = await connection.execute(
        select(t.attempt.c.id, t.attempt.c.billed_at)
        .join(t.job, t.job.c.id == t.attempt.c.job_id)
        .where(t.job.c.id == job_id, t.job.c.project_id == project_id)
        .order_by(t.attempt.c.number)
    )
    lines: list[Line] = []
    is_final = True
    for attempt_id, billed_at in attempts.all():
        is_final = is_final and billed_at is not None
        read = compute if billed_at is None else settled
        lines += await read(connection, attempt_id)
    return JobBill(merged(lines), is_final)


@dataclass(frozen=True, slots=True)
class JudgeTotal:
    """What a job's graded rollouts asked of one judge."""

    judge: str
    rollouts: int
    calls: int
    failed: int
    prompt_tokens: int
    sampled_tokens: int


async def judges_of_job(
    connection: AsyncConnection, project_id: str, job_id: str
) -> list[JudgeTotal]:
    """Each judge of a job once, over all attempts. Rows come with verdicts, so none counts twice."""
    counted = (
        *(judge_use.c.calls, judge_use.c.failed),
        *(judge_use.c.prompt_tokens, judge_use.c.sampled_tokens),
    )
    query = (
        select(judge_use.c.judge, func.count(), *(func.sum(one) for one in counted))
        .join(t.attempt, t.attempt.c.id == judge_use.c.attempt_id)
        .join(t.job, t.job.c.id == t.attempt.c.job_id)
        .where(t.job.c.id == job_id, t.job.c.project_id == project_id)
        .group_by(judge_use.c.judge)
        .order_by(judge_use.c.judge)
    )
    rows = (await connection.execute(query)).all()
    return [JudgeTotal(row[0], *(int(count) for count in row[1:])) for row in rows]


async def settled(connection: AsyncConnection, attempt_id: str) -> list[Line]:
    """The ledger's lines of an ended attempt."""
    line = t.bill_line
    rows = await connection.execute(select(line).where(line.c.attempt_id == attempt_id))
    return [
        Line(Resource(row.resource), Bucket(row.bucket), row.seconds, row.rollouts) for row in rows
    ]


async def compute(connection: AsyncConnection, attempt_id: str) -> list[Line]:
    """Lines of an attempt as the facts stand now."""
    spans = await _spans(connection, attempt_id)
    counts = await _rollouts(connection, attempt_id)
    uses = {
        Resource.ENGINE: await _engine_use(connection, attempt_id),
        Resource.TRAINER: await _trainer_use(connection, attempt_id),
    }
    lines = []
    for resource, kind in KINDS.items():
        lines += host_lines(resource, spans[kind], uses[resource])
    lines += lines_of(Resource.SANDBOX, await _sandboxes(connection, attempt_id))
    return [replace(line, rollouts=counts.get(line.bucket, 0)) for line in lines]


def _seconds(start: Any, end: Any) -> Any:
    return func.greatest(func.extract("epoch", end - start), 0.0)


async def _spans(
    connection: AsyncConnection, attempt_id: str
) -> Mapping[HostKind, Sequence[HostSpan]]:
    end = func.coalesce(interval.c.ended_at, func.now())
    query = (
        select(
            interval.c.kind,
            interval.c.opened,
            interval.c.cause.is_not(None).label("is_lost"),
            _seconds(interval.c.started_at, end).label("seconds"),
            _seconds(interval.c.ready_at, end).label("ready_s"),
            interval.c.ready_at,
        )
        .where(interval.c.attempt_id == attempt_id)
        .order_by(interval.c.host_id, interval.c.number)
    )
    spans: dict[HostKind, list[HostSpan]] = defaultdict(list)
    for row in await connection.execute(query):
        seconds = float(row.seconds)
        ready_s = 0.0 if row.ready_at is None else min(float(row.ready_s), seconds)
        spans[HostKind(row.kind)].append(
            HostSpan(Opened(row.opened), seconds, ready_s, row.is_lost)
        )
    return spans


async def _rollouts(connection: AsyncConnection, attempt_id: str) -> Mapping[Bucket, int]:
    query = (
        select(rollout.c.bucket, func.count())
        .join(t.attempt, t.attempt.c.job_id == rollout.c.job_id)
        .where(t.attempt.c.id == attempt_id, rollout.c.attempt_id == attempt_id)
        .group_by(rollout.c.bucket)
    )
    return {Bucket(row[0]): int(row[1]) for row in await connection.execute(query)}


def _bucket_of_try(number: Any) -> Any:
    """A rollout's last try has its bucket; one before it was lost, or given back at a pause."""
    is_lost = ended_try.c.end.in_([end.value for end in INFRASTRUCTURE_ENDS])
    return case(
        (number == rollout.c["try"], rollout.c.bucket),
        (is_lost, Bucket.INFRASTRUCTURE.value),
        else_=Bucket.CANCELLED.value,
    ).label("bucket")


def _with_try(query: Select[Any], used: Any, number: Any) -> Select[Any]:
    return query.join(rollout, rollout.c.id == used.c.rollout_id).outerjoin(
        ended_try, and_(ended_try.c.rollout_id == used.c.rollout_id, ended_try.c["try"] == number)
    )


async def _engine_use(connection: AsyncConnection, attempt_id: str) -> HostUse:
    number = hop.c["try"]
    bucket = _bucket_of_try(number)
    query = select(bucket, func.sum(hop.c.engine_s), func.sum(hop.c.tool_wait_s)).select_from(hop)
    query = (
        _with_try(query, hop, number)
        .where(hop.c.attempt_id == attempt_id, hop.c.ended_at.is_not(None))
        .group_by(bucket)
    )
    rows = (await connection.execute(query)).all()
    busy = {Bucket(row[0]): Share(float(row[1] or 0.0)) for row in rows}
    return HostUse(busy, sum(float(row[2] or 0.0) for row in rows))


async def _trainer_use(connection: AsyncConnection, attempt_id: str) -> HostUse:
    metric, step = t.metric, t.train_step
    bucket = case(
        (metric.c.name == CHECKPOINT_S, Bucket.CHECKPOINTING.value),
        (step.c.diverged.is_(True), Bucket.DIVERGED.value),
        else_=Bucket.TRAINED.value,
    )
    query = (
        select(bucket, func.sum(metric.c.value))
        .select_from(metric)
        .outerjoin(
            step, and_(step.c.attempt_id == metric.c.attempt_id, step.c.step == metric.c.step)
        )
        .where(metric.c.attempt_id == attempt_id, metric.c.name.in_((STEP_S, CHECKPOINT_S)))
        .group_by(bucket)
    )
    rows = await connection.execute(query)
    return HostUse({Bucket(row[0]): Share(float(row[1])) for row in rows})


async def _sandboxes(connection: AsyncConnection, attempt_id: str) -> Mapping[Bucket, Share]:
    box = t.sandbox_interval
    own = _bucket_of_try(box.c.number)
    bucket = case((box.c.purpose == "grader", rollout.c.bucket), else_=own).label("bucket")
    end = func.coalesce(box.c.ended_at, func.now())
    query = select(bucket, func.sum(_seconds(box.c.started_at, end))).select_from(box)
    query = (
        _with_try(query, box, box.c.number).where(box.c.attempt_id == attempt_id).group_by(bucket)
    )
    rows = await connection.execute(query)
    return {Bucket(row[0]): Share(float(row[1])) for row in rows}
