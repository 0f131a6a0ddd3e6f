"""Rows of what environments printed, written by node agents under their fence."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Integer, Text, cast, literal, null, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, HostId, RolloutId
from stores import tables as t

output = t.environment_output


@dataclass(frozen=True, slots=True)
class Output:
    """A stored object of lines. No rollout: the environment's process printed it for none."""

    id: str
    attempt_id: AttemptId
    rollout_id: RolloutId | None
    try_: int | None
    component: str
    uri: str
    sha: str
    size: int
    lines: int
    lost: int
    started_at: datetime


async def write(
    connection: AsyncConnection, found: Sequence[Output], host_id: HostId, epoch: int
) -> None:
    """Name the objects; one whose attempt or rollout is unknown is left out, a repeated one too."""
    for one in found:
        values = {
            "id": literal(one.id),
            "job_id": t.attempt.c.job_id,
            "attempt_id": t.attempt.c.id,
            "rollout_id": cast(null(), Text) if one.rollout_id is None else t.rollout.c.id,
            "try": cast(literal(one.try_), Integer),
            "component": literal(one.component),
            "host_id": literal(host_id),
            "epoch": literal(epoch),
            "uri": literal(one.uri),
            "sha": literal(one.sha),
            "size": literal(one.size),
            "lines": literal(one.lines),
            "lost": literal(one.lost),
            "started_at": literal(one.started_at),
        }
        source = select(*values.values()).where(t.attempt.c.id == one.attempt_id)
        if one.rollout_id is not None:
            source = source.where(
                t.rollout.c.id == one.rollout_id, t.rollout.c.attempt_id == t.attempt.c.id
            )
        query = insert(output).from_select(list(values), source).on_conflict_do_nothing()
        await connection.execute(query)
