"""Sandboxes of tenants as their node sees them: claimed, started, moved, ended, all under its fence.

What a node held when its lease ended is ended by `END_OF_NODE`, in the transaction that changes the
lease (`stores.system.intervals`): nothing is left that says it runs. What it had claimed and not yet
started is free for another node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Float, cast, delete, exists, func, null, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.tenant_sandboxes import PAUSED_S_MAX, SandboxEnd, SandboxState
from stores import tables as t
from stores.unit_of_work import HostFence

box, door = t.sandbox, t.node_door

CLAIMS: Final = 0x5A4D_B0C5
"""Advisory lock of claims: members of one fork must not be claimed by two nodes."""

KEPT: Final = timedelta(days=30)
"""How long an ended sandbox is shown."""

SWEPT_MAX: Final = 500
"""Rows of one sweep: the transaction stays short."""

END_OF_NODE: Final = """
update sandbox s
set state = case when s.state = 'requested' and s.desired <> 'ended' then s.state else 'ended' end,
    cause = case when s.state = 'requested' and s.desired <> 'ended' then null
                 when s.state = 'requested' then 'killed' else 'node_agent_lost' end,
    detail = case when s.state = 'requested' then '' else coalesce(
        cast(%(cause)s as text), 'its node''s agent was stopped') end,
    ended_at = case when s.state = 'requested' and s.desired <> 'ended' then null else now() end,
    env_sealed = case when s.state = 'requested' and s.desired <> 'ended' then s.env_sealed end,
    host_id = case when s.state = 'requested' then null else s.host_id end,
    epoch = case when s.state = 'requested' then null else s.epoch end
from host_lease lease
where lease.id = %(host)s and lease.kind = 'node' and s.host_id = lease.id and s.state <> 'ended'
    and (s.epoch <> lease.epoch or lease.owner is null)
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """A sandbox of this node: what it is, what it shall be, and for how long."""

    sandbox_id: str
    state: SandboxState
    desired: SandboxState
    left_s: float
    """Until the end of its lifetime, its wait or its pause."""
    lifetime_left_s: float | None
    """Of a paused one, once it goes on."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A sandbox is over."""

    sandbox_id: str
    cause: SandboxEnd
    detail: str


async def open_door(
    connection: AsyncConnection, fence: HostFence, values: Mapping[str, object]
) -> None:
    """The node serves from now on; `values` are address, key, runtime and facts."""
    row = {"epoch": fence.epoch, **values}
    fresh = insert(door).values(host_id=fence.host_id, **row)
    again = fresh.on_conflict_do_update(
        index_elements=["host_id"], set_={**row, "opened_at": func.now()}
    )
    await connection.execute(again)


async def wishes(connection: AsyncConnection, fence: HostFence) -> list[Wish]:
    """All that the node holds by its rows."""
    left = cast(func.extract("epoch", box.c.ends_at - func.now()), Float)
    query = select(box.c.id, box.c.state, box.c.desired, box.c.left_s, left.label("ends_in")).where(
        *_is_of(fence)
    )
    return [
        Wish(row.id, SandboxState(row.state), SandboxState(row.desired), row.ends_in, row.left_s)
        for row in await connection.execute(query.order_by(box.c.id))
    ]


async def claim(
    connection: AsyncConnection, fence: HostFence, but: Sequence[str]
) -> Sequence[Row[Any]]:
    """The members of the fork that has waited longest, from now on this node's; none: nothing waits.

    `but` are forks for which it had no room a moment ago.
    """
    lock = select(func.pg_try_advisory_xact_lock(CLAIMS))
    if not (await connection.execute(lock)).scalar_one():
        return ()
    is_free = (
        box.c.state == SandboxState.REQUESTED.value,
        box.c.host_id.is_(None),
        box.c.desired == SandboxState.RUNNING.value,
        box.c.ends_at > func.now(),
    )
    first = select(box.c.group_id).where(*is_free, box.c.group_id.not_in(but))
    group = (await connection.execute(first.order_by(box.c.id).limit(1))).scalar_one_or_none()
    if group is None:
        return ()
    claimed = (
        update(box)
        .where(box.c.group_id == group, *is_free)
        .values(host_id=fence.host_id, epoch=fence.epoch)
        .returning(box)
    )
    return sorted((await connection.execute(claimed)).all(), key=lambda row: row.member)


async def let_go(
    connection: AsyncConnection, fence: HostFence, ids: Sequence[str], waits_for: str
) -> None:
    """Give a claim back, with what there was no room for."""
    await connection.execute(
        update(box)
        .where(box.c.id.in_(ids), *_is_of(fence), box.c.state == SandboxState.REQUESTED.value)
        .values(host_id=null(), epoch=null(), detail=waits_for)
    )


async def started(connection: AsyncConnection, fence: HostFence, ids: Sequence[str]) -> None:
    """They run; their lifetimes begin."""
    await connection.execute(
        update(box)
        .where(box.c.id.in_(ids), *_is_of(fence), box.c.state == SandboxState.REQUESTED.value)
        .values(
            state=SandboxState.RUNNING.value,
            started_at=func.now(),
            ends_at=func.now() + _seconds(box.c.lifetime_s),
            env_sealed=null(),
            detail="",
        )
    )


async def paused(connection: AsyncConnection, fence: HostFence, id: str) -> None:
    """It stands still; its lifetime stops."""
    await connection.execute(
        update(box)
        .where(box.c.id == id, *_is_of(fence), box.c.state == SandboxState.RUNNING.value)
        .values(
            state=SandboxState.PAUSED.value,
            left_s=func.greatest(
                0.0, cast(func.extract("epoch", box.c.ends_at - func.now()), Float)
            ),
            ends_at=func.now() + timedelta(seconds=PAUSED_S_MAX),
        )
    )


async def resumed(connection: AsyncConnection, fence: HostFence, id: str) -> None:
    """It goes on, with what was left of its lifetime."""
    await connection.execute(
        update(box)
        .where(box.c.id == id, *_is_of(fence), box.c.state == SandboxState.PAUSED.value)
        .values(
            state=SandboxState.RUNNING.value,
            ends_at=func.now() + _seconds(box.c.left_s),
            left_s=null(),
        )
    )


async def stays(
    connection: AsyncConnection, fence: HostFence, id: str, state: SandboxState
) -> None:
    """What was wanted cannot be: it stays as it is, unless its owner wants its end meanwhile."""
    await connection.execute(
        update(box)
        .where(box.c.id == id, *_is_of(fence), box.c.desired != SandboxState.ENDED.value)
        .values(desired=state.value)
    )


async def end(connection: AsyncConnection, fence: HostFence, ended: Ended) -> None:
    """It is over; the first cause counts."""
    await connection.execute(
        update(box)
        .where(box.c.id == ended.sandbox_id, *_is_of(fence))
        .values(
            state=SandboxState.ENDED.value,
            cause=ended.cause.value,
            detail=ended.detail,
            ended_at=func.now(),
            env_sealed=null(),
        )
    )


async def sweep(connection: AsyncConnection) -> Sequence[str]:
    """End what has waited in vain, and what a node that is gone held; forget what ended long ago.

    Their ids. The second is a second look: a lease's end takes its sandboxes along.
    """
    waited = (
        update(box)
        .where(
            box.c.state == SandboxState.REQUESTED.value,
            box.c.host_id.is_(None),
            box.c.ends_at <= func.now(),
        )
        .values(
            state=SandboxState.ENDED.value,
            cause=SandboxEnd.NO_ROOM.value,
            detail=func.coalesce(func.nullif(box.c.detail, ""), "no node asked for it"),
            ended_at=func.now(),
            env_sealed=null(),
        )
        .returning(box.c.id)
    )
    gone = list((await connection.execute(waited)).scalars())
    old = select(box.c.id).where(box.c.ended_at < func.now() - KEPT).limit(SWEPT_MAX)
    await connection.execute(delete(box).where(box.c.id.in_(old)))
    holder = exists().where(
        t.host_lease.c.id == box.c.host_id,
        t.host_lease.c.epoch == box.c.epoch,
        t.host_lease.c.owner.is_not(None),
    )
    lost = (
        update(box)
        .where(box.c.state.in_((SandboxState.RUNNING.value, SandboxState.PAUSED.value)), ~holder)
        .values(
            state=SandboxState.ENDED.value,
            cause=SandboxEnd.NODE_AGENT_LOST.value,
            detail="nobody holds its node's lease",
            ended_at=func.now(),
        )
        .returning(box.c.id)
    )
    return [*gone, *(await connection.execute(lost)).scalars()]


def _is_of(fence: HostFence) -> tuple[Any, ...]:
    return (
        box.c.host_id == fence.host_id,
        box.c.epoch == fence.epoch,
        box.c.state != SandboxState.ENDED.value,
    )


def _seconds(column: Any) -> Any:
    return column * text("interval '1 second'")
