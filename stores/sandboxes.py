"""Sandboxes of a project as the gateway reads them, and as it says what its owner wants of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, case, func, insert, null, select, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.tenant_sandboxes import WAIT_S, SandboxEnd, SandboxState
from stores import tables as t
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page

box, door, lease = t.sandbox, t.node_door, t.host_lease

ENDED: Final = SandboxState.ENDED.value
REQUESTED: Final = SandboxState.REQUESTED.value
RUNNING: Final = SandboxState.RUNNING.value


@dataclass(frozen=True, slots=True)
class Door:
    """Where a node that holds its lease serves calls, and what its runtime can do."""

    host_id: str
    epoch: int
    address: str
    key: bytes
    runtime: str
    facts: Mapping[str, Any]


async def open_count(connection: AsyncConnection, project_id: str) -> int:
    """Sandboxes of the project that have not ended."""
    query = select(func.count()).where(box.c.project_id == project_id, box.c.state != ENDED)
    return int((await connection.execute(query)).scalar_one())


async def create(
    connection: AsyncConnection, owner: Owner, ids: Sequence[str], values: Mapping[str, object]
) -> Sequence[Row[Any]]:
    """Ask for a fork with these members."""
    scope = {"organization_id": owner.organization_id, "project_id": owner.project_id, **values}
    ends_at = func.now() + timedelta(seconds=WAIT_S)
    rows = [{**scope, "id": id, "member": member} for member, id in enumerate(ids)]
    query = insert(box).values([{**row, "ends_at": ends_at} for row in rows]).returning(box)
    return sorted((await connection.execute(query)).all(), key=lambda row: row.member)


async def page(
    connection: AsyncConnection,
    project_id: str,
    request: PageRequest,
    *,
    state: str | None = None,
    group_id: str | None = None,
) -> PageOfRows:
    """Sandboxes of the project."""
    query = select(box).where(box.c.project_id == project_id)
    if state is not None:
        query = query.where(box.c.state == state)
    if group_id is not None:
        query = query.where(box.c.group_id == group_id)
    return await fetch_page(connection, query, box.c.id, request)


async def of_group(
    connection: AsyncConnection, project_id: str, group_id: str
) -> Sequence[Row[Any]]:
    """The members of a fork."""
    query = select(box).where(box.c.project_id == project_id, box.c.group_id == group_id)
    return (await connection.execute(query.order_by(box.c.member))).all()


async def find(
    connection: AsyncConnection, project_id: str, sandbox_id: str, *, noted: bool = False
) -> Row[Any] | None:
    """A sandbox of the project; `noted`: the call acts on it, so that it has an audit event."""
    query = select(box).where(box.c.id == sandbox_id, box.c.project_id == project_id)
    if noted:
        query = query.with_for_update(read=True, key_share=True)
    return (await connection.execute(query)).first()


async def want(
    connection: AsyncConnection, project_id: str, sandbox_id: str, desired: SandboxState
) -> Row[Any] | None:
    """Say what it shall be. One that no node has claimed ends here; an ended one stays as it is."""
    is_unclaimed = (box.c.state == REQUESTED) & box.c.host_id.is_(None)
    values: dict[str, object] = {
        "desired": case((box.c.state == ENDED, box.c.desired), else_=desired.value)
    }
    if desired is SandboxState.ENDED:
        values |= {
            "state": case((is_unclaimed, ENDED), else_=box.c.state),
            "cause": case((is_unclaimed, SandboxEnd.KILLED.value), else_=box.c.cause),
            "ended_at": case((is_unclaimed, func.now()), else_=box.c.ended_at),
            "env_sealed": case((is_unclaimed, null()), else_=box.c.env_sealed),
        }
    return await _changed(connection, project_id, sandbox_id, values)


async def extend(
    connection: AsyncConnection, project_id: str, sandbox_id: str, lifetime_s: float
) -> Row[Any] | None:
    """So much more time from now on; of a paused one, from when it goes on."""
    until = func.now() + timedelta(seconds=lifetime_s)
    values: dict[str, object] = {
        "lifetime_s": case((box.c.state == REQUESTED, lifetime_s), else_=box.c.lifetime_s),
        "ends_at": case((box.c.state == RUNNING, until), else_=box.c.ends_at),
        "left_s": case((box.c.left_s.is_not(None), lifetime_s), else_=null()),
    }
    return await _changed(connection, project_id, sandbox_id, values)


async def doors(connection: AsyncConnection, host_id: str | None = None) -> Sequence[Door]:
    """Open doors: of the nodes that hold their leases now."""
    query = (
        select(door)
        .join(lease, (lease.c.id == door.c.host_id) & (lease.c.epoch == door.c.epoch))
        .where(lease.c.owner.is_not(None), lease.c.lease_until > func.now(), _is(host_id))
        .order_by(door.c.host_id)
    )
    return [
        Door(row.host_id, row.epoch, row.address, row.key, row.runtime, row.facts)
        for row in await connection.execute(query)
    ]


def _is(host_id: str | None) -> ColumnElement[bool]:
    return door.c.host_id == (door.c.host_id if host_id is None else host_id)


async def _changed(
    connection: AsyncConnection, project_id: str, sandbox_id: str, values: Mapping[str, object]
) -> Row[Any] | None:
    query = (
        update(box)
        .where(box.c.id == sandbox_id, box.c.project_id == project_id)
        .values(**values)
        .returning(box)
    )
    found: Row[Any] | None = (await connection.execute(query)).first()
    return found
