"""Intervals of sandboxes: for how long a node's room was held by a try, or by the grading of a rollout.

Written by the node agent. What it left open when it died ends with the interval of its lease
(`stores.system.intervals`).
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, DateTime, cast, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import HostId, RolloutId
from domain.sandbox import SandboxPurpose
from stores import tables as t

box = t.sandbox_interval


@dataclass(frozen=True, slots=True)
class Room:
    """What holds the room of one sandbox. `number`: the try of an agent, the grade epoch of a grader."""

    rollout_id: RolloutId
    purpose: SandboxPurpose
    number: int


async def begin(
    connection: AsyncConnection, room: Room, host_id: HostId, epoch: int, age_s: float
) -> None:
    """The room has been held for `age_s` seconds; a repeated call changes nothing."""
    row = select(
        t.rollout.c.id,
        literal(room.purpose.value),
        literal(room.number),
        t.rollout.c.attempt_id,
        literal(host_id),
        literal(epoch),
        _ago(age_s),
    ).where(t.rollout.c.id == room.rollout_id)
    columns = [
        *("rollout_id", "purpose", "number", "attempt_id"),
        *("host_id", "epoch", "started_at"),
    ]
    await connection.execute(insert(box).from_select(columns, row).on_conflict_do_nothing())


async def end(
    connection: AsyncConnection, room: Room, host_id: HostId, epoch: int, age_s: float
) -> None:
    """The room was given back `age_s` seconds ago; a repeated call changes nothing."""
    await connection.execute(
        update(box)
        .where(
            box.c.rollout_id == room.rollout_id,
            box.c.purpose == room.purpose.value,
            box.c.number == room.number,
            box.c.host_id == host_id,
            box.c.epoch == epoch,
            box.c.ended_at.is_(None),
        )
        .values(ended_at=func.greatest(box.c.started_at, _ago(age_s)))
    )


def _ago(age_s: float) -> ColumnElement[datetime]:
    return cast(func.now() - func.make_interval(0, 0, 0, 0, 0, 0, age_s), DateTime(timezone=True))
