"""Host leases: compare-and-set claims by keepers, expiry and dispatch by the leader.

Database time everywhere. Only a claimed lease that expired, or its own keeper, raises the epoch; a
re-dispatch while unclaimed keeps it, so that late and duplicate wake-ups are harmless. Every change of
owner or epoch is also recorded as an interval, in the same transaction: time is billed from those.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import psycopg
from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.ids import AttemptId, HostId, JobId
from domain.states import HostKind
from stores import tables as t
from stores.system import intervals
from stores.system.intervals import Change

lease = t.host_lease

DOWN: Final = "down"
"""Cause of a host that was told to end."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A lease as the leader sees it; `expired` is judged by database time."""

    host_id: HostId
    kind: HostKind
    attempt_id: AttemptId | None
    job_id: JobId | None
    desired: str
    epoch: int
    owner: str | None
    key_sha: bytes | None
    starts: int
    last_cause: str | None
    expired: bool
    wants_dispatch: bool


async def declare(
    connection: AsyncConnection,
    host_id: HostId,
    kind: HostKind,
    attempt_id: AttemptId | None = None,
    job_id: JobId | None = None,
) -> None:
    """Want this host up. A row that was down starts anew at a higher epoch with its starts reset."""
    fresh = insert(lease).values(
        id=host_id, kind=kind.value, attempt_id=attempt_id, job_id=job_id, desired="up"
    )
    await connection.execute(
        fresh.on_conflict_do_update(
            index_elements=["id"],
            set_={
                "desired": "up",
                "epoch": lease.c.epoch + 1,
                "starts": 0,
                "owner": None,
                "lease_until": None,
                "dispatched_at": None,
            },
            where=lease.c.desired == "down",
        )
    )
    await intervals.record(connection, host_id, Change(is_declared=True))


async def retire(connection: AsyncConnection, attempt_id: AttemptId) -> None:
    """Want all hosts of an attempt down; their keepers end them at the next renewal."""
    retired = await connection.execute(
        update(lease)
        .where(lease.c.attempt_id == attempt_id)
        .values(desired="down")
        .returning(lease.c.id)
    )
    for host_id in retired.scalars().all():
        await intervals.record(connection, HostId(host_id))


async def evict(connection: AsyncConnection, host_id: HostId, epoch: int, cause: str) -> None:
    """Take the lease from its keeper with a cause; its next renewal fails and ends the process."""
    await connection.execute(
        update(lease)
        .where(lease.c.id == host_id, lease.c.epoch == epoch)
        .values(
            epoch=lease.c.epoch + 1,
            owner=None,
            lease_until=None,
            dispatched_at=None,
            last_cause=cause,
        )
    )
    await intervals.record(connection, host_id, Change(cause=cause))


EXPIRED: Final = "lease expired"


async def expire(connection: AsyncConnection) -> list[tuple[HostId, int]]:
    """Raise the epoch of every claimed lease past its end; returns (host, dead epoch) pairs.

    A row that its keeper is writing, or holds locked while it is stopped, is left for the next call:
    one stopped keeper must not hold up the others' end.
    """
    is_over = (lease.c.owner.is_not(None), lease.c.lease_until < func.now())
    over = await connection.execute(
        select(lease.c.id, lease.c.epoch, lease.c.lease_until)
        .where(*is_over)
        .order_by(lease.c.id)
        .with_for_update(skip_locked=True)
    )
    expired = over.all()
    if not expired:
        return []
    await connection.execute(
        update(lease)
        .where(lease.c.id.in_([row.id for row in expired]))
        .values(
            epoch=lease.c.epoch + 1,
            owner=None,
            lease_until=None,
            dispatched_at=None,
            last_cause=EXPIRED,
        )
    )
    for row in expired:
        change = Change(cause=EXPIRED, lease_until=row.lease_until)
        await intervals.record(connection, HostId(row.id), change)
    return [(HostId(row.id), int(row.epoch)) for row in expired]


async def live(connection: AsyncConnection, redispatch_after_s: float) -> list[LeaseRow]:
    """All rows that are wanted up or still claimed."""
    waited = func.now() - timedelta(seconds=redispatch_after_s)
    query = select(
        lease,
        (lease.c.lease_until < func.now()).label("is_expired"),
        or_(lease.c.dispatched_at.is_(None), lease.c.dispatched_at < waited).label("is_due"),
    ).where(or_(lease.c.desired == "up", lease.c.owner.is_not(None)))
    return [
        LeaseRow(
            host_id=HostId(row.id),
            kind=HostKind(row.kind),
            attempt_id=row.attempt_id,
            job_id=row.job_id,
            desired=row.desired,
            epoch=row.epoch,
            owner=row.owner,
            key_sha=row.key_sha,
            starts=row.starts,
            last_cause=row.last_cause,
            expired=bool(row.is_expired),
            wants_dispatch=row.desired == "up" and row.owner is None and bool(row.is_due),
        )
        for row in await connection.execute(query.order_by(lease.c.id))
    ]


async def mark_dispatched(connection: AsyncConnection, host_id: HostId, epoch: int) -> None:
    """Remember when a wake-up was sent, for the re-dispatch deadline."""
    await connection.execute(
        update(lease)
        .where(lease.c.id == host_id, lease.c.epoch == epoch)
        .values(dispatched_at=func.now())
    )


async def key_of(connection: AsyncConnection, host_id: HostId, epoch: int) -> bytes | None:
    """Hash of the host key of a claimed, unexpired lease at this epoch."""
    query = select(lease.c.key_sha).where(
        lease.c.id == host_id, lease.c.epoch == epoch, lease.c.owner.is_not(None)
    )
    return (await connection.execute(query)).scalar_one_or_none()


# Keepers are plain synchronous code in a pool child.


@dataclass(frozen=True, slots=True)
class Claim:
    """What a keeper learns at its claim."""

    kind: str
    attempt_id: AttemptId | None
    job_id: JobId | None


def claim(
    connection: psycopg.Connection[tuple[object, ...]],
    host_id: str,
    epoch: int,
    *,
    owner: str,
    key_sha: bytes,
    ttl_s: float,
) -> Claim | None:
    """Compare-and-set on `owner is null and epoch`; None when another has it or it is not wanted."""
    with connection.transaction():
        row = connection.execute(
            "update host_lease set owner = %s, key_sha = %s, starts = starts + 1,"
            " lease_until = now() + make_interval(secs => %s)"
            " where id = %s and epoch = %s and owner is null and desired = 'up'"
            " returning kind, attempt_id, job_id",
            (owner, key_sha, ttl_s, host_id, epoch),
        ).fetchone()
        if row is not None:
            intervals.record_sync(connection, host_id, Change(ttl_s=ttl_s))
    if row is None:
        return None
    kind, attempt, job = row
    return Claim(
        str(kind),
        AttemptId(str(attempt)) if attempt else None,
        JobId(str(job)) if job else None,
    )


def renew(
    connection: psycopg.Connection[tuple[object, ...]],
    host_id: str,
    epoch: int,
    owner: str,
    ttl_s: float,
) -> str | None:
    """Renew and return `desired`; None when the lease is lost or expired meanwhile."""
    row = connection.execute(
        "update host_lease set lease_until = now() + make_interval(secs => %s)"
        " where id = %s and epoch = %s and owner = %s and lease_until > now() returning desired",
        (ttl_s, host_id, epoch, owner),
    ).fetchone()
    return None if row is None else str(row[0])


def give_up(
    connection: psycopg.Connection[tuple[object, ...]],
    host_id: str,
    epoch: int,
    owner: str,
    cause: str,
) -> None:
    """The keeper's process is dead: free the lease at a raised epoch, with the cause.

    `down` is no loss: the host was told to end.
    """
    with connection.transaction():
        freed = connection.execute(
            "update host_lease set owner = null, lease_until = null, dispatched_at = null,"
            " epoch = epoch + 1, last_cause = %s where id = %s and epoch = %s and owner = %s",
            (cause, host_id, epoch, owner),
        )
        if freed.rowcount:
            change = Change(cause=None if cause == DOWN else cause)
            intervals.record_sync(connection, host_id, change)
