"""Intervals of hosts: who held which lease when, written in the transaction that changes the lease.

    declared            claimed             expired             claimed          freed, not wanted
    | waiting (epoch 1) | held (epoch 1)    | waiting (epoch 2) | held (epoch 2) |

Each interval begins at the instant at which the one before it ended, so that intervals of a host
neither gap nor overlap from its declaration to its end. The lease's row is locked by the change that
is recorded, so that records of one host are serial. Statements are plain text: keepers run them on a
connection of their own, the leader on its pool.
"""

import re
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

import psycopg
from sqlalchemy import func, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import HostId
from stores import tables as t
from stores.system.tenant_sandboxes import END_OF_NODE

CLOSE: Final = """
update host_interval i
set ended_at = greatest(i.started_at, least(now(), coalesce(
        cast(%(lease_until)s as timestamptz) - make_interval(secs => i.ttl_s), now()))),
    cause = cast(%(cause)s as text)
from host_lease lease
where i.host_id = %(host)s and lease.id = i.host_id and i.ended_at is null
    and ((i.epoch, i.owner is null) is distinct from (lease.epoch, lease.owner is null)
        or (lease.desired = 'down' and lease.owner is null))
"""

CLOSE_SANDBOXES: Final = """
update sandbox_interval s
set ended_at = greatest(s.started_at, i.ended_at)
from host_interval i
where i.host_id = %(host)s and s.host_id = i.host_id and s.epoch = i.epoch
    and s.ended_at is null and i.ended_at is not null and i.kind = 'node'
    and i.owner is not null
"""

OPEN: Final = """
insert into host_interval
    (host_id, number, kind, job_id, attempt_id, epoch, owner, opened, started_at, ttl_s)
select lease.id, coalesce(before.number, 0) + 1, lease.kind, lease.job_id, lease.attempt_id,
    lease.epoch, lease.owner,
    case when cast(%(is_declared)s as boolean) or before.number is null then 'declared'
         when lease.owner is not null and before.owner is null then before.opened
         else 'lost' end,
    case when cast(%(is_declared)s as boolean) or before.number is null
         then greatest(now(), before.ended_at) else before.ended_at end,
    cast(%(ttl_s)s as double precision)
from host_lease lease
left join lateral (
    select * from host_interval i where i.host_id = lease.id order by i.number desc limit 1
) before on true
where lease.id = %(host)s and (lease.desired = 'up' or lease.owner is not null)
    and not exists (select from host_interval i where i.host_id = lease.id and i.ended_at is null)
"""

STATEMENTS: Final = (CLOSE, CLOSE_SANDBOXES, END_OF_NODE, OPEN)


@dataclass(frozen=True, slots=True)
class Change:
    """How a lease was changed, beyond what its row says."""

    cause: str | None = None
    """Why its holder was lost; None when it was claimed, declared, or ended as it was told to."""
    is_declared: bool = False
    lease_until: datetime | None = None
    """End of the lease that expired: its holder is proven alive until its last renewal."""
    ttl_s: float | None = None
    """Length of the lease that was claimed."""


CLAIMED_OR_DOWN: Final = Change()


async def record(
    connection: AsyncConnection, host_id: HostId, change: Change = CLAIMED_OR_DOWN
) -> None:
    """Bring the host's intervals in line with its lease, which this transaction has just changed."""
    for statement in _NAMED:
        await connection.execute(text(statement), {"host": host_id, **asdict(change)})


def record_sync(
    connection: psycopg.Connection[tuple[object, ...]], host_id: str, change: Change
) -> None:
    """`record` for keepers, inside their transaction."""
    for statement in STATEMENTS:
        connection.execute(statement.encode(), {"host": host_id, **asdict(change)})


async def mark_ready(connection: AsyncConnection, host_id: HostId, epoch: int) -> None:
    """The host has loaded and can work; written by itself under its fence, once an epoch."""
    interval = t.host_interval
    await connection.execute(
        update(interval)
        .where(
            interval.c.host_id == host_id,
            interval.c.epoch == epoch,
            interval.c.owner.is_not(None),
            interval.c.ended_at.is_(None),
            interval.c.ready_at.is_(None),
        )
        .values(ready_at=func.now())
    )


_NAMED: Final = tuple(re.sub(r"%\((\w+)\)s", r":\1", statement) for statement in STATEMENTS)
"""The same statements with parameters as SQLAlchemy writes them."""
