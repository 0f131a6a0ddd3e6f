"""Placements of rollouts: who ran which hop, and what of its host's time it used.

The leader appends a hop in the transaction that raises it. The host adds its measure when the
placement ends; a host that dies leaves it null, and the seconds stay in the idle rest of its interval.
"""

from dataclasses import dataclass

from sqlalchemy import func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain import commands as c
from domain.ids import RolloutId
from stores import tables as t

hop_table, rollout = t.rollout_hop, t.rollout


@dataclass(frozen=True, slots=True)
class HopUse:
    """Shares of the host's busy time, and of the time in which it stood still for this one's tool."""

    engine_s: float = 0.0
    tool_wait_s: float = 0.0


async def append(connection: AsyncConnection, command: c.PlaceRollout) -> None:
    """Remember a placement; a second execution changes nothing."""
    row = select(
        rollout.c.id,
        literal(command.hop),
        literal(command.try_),
        rollout.c.attempt_id,
        literal(command.host_id),
    ).where(rollout.c.id == command.rollout_id)
    columns = ["rollout_id", "hop", "try", "attempt_id", "host_id"]
    await connection.execute(insert(hop_table).from_select(columns, row).on_conflict_do_nothing())


async def measure(
    connection: AsyncConnection, rollout_id: RolloutId, hop: int, use: HopUse
) -> None:
    """Write a placement's measure once; a repeated call changes nothing."""
    await connection.execute(
        update(hop_table)
        .where(
            hop_table.c.rollout_id == rollout_id,
            hop_table.c.hop == hop,
            hop_table.c.ended_at.is_(None),
        )
        .values(ended_at=func.now(), engine_s=use.engine_s, tool_wait_s=use.tool_wait_s)
    )
