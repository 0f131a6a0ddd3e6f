"""Numbers of the installation, without any tenant's names."""

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t


async def ping(connection: AsyncConnection) -> None:
    """One round trip."""
    await connection.execute(select(1))


async def summary(connection: AsyncConnection) -> dict[str, Any]:
    """Leader, hosts by kind, unfinished jobs by state."""
    leader = (
        await connection.execute(
            select(
                t.leadership.c.term,
                func.extract("epoch", func.now() - t.leadership.c.heartbeat_at).label("age"),
            ).where(t.leadership.c.address != "")
        )
    ).first()
    lease = t.host_lease
    hosts = await connection.execute(
        select(lease.c.kind, func.count())
        .where(lease.c.owner.is_not(None), lease.c.lease_until > func.now())
        .group_by(lease.c.kind)
        .order_by(lease.c.kind)
    )
    jobs = await connection.execute(
        select(t.job.c.state, func.count())
        .where(t.job.c.ended_at.is_(None))
        .group_by(t.job.c.state)
        .order_by(t.job.c.state)
    )
    return {
        "leader": None
        if leader is None
        else {"term": leader.term, "heartbeat_age_s": round(float(leader.age), 3)},
        "hosts": {row[0]: row[1] for row in hosts},
        "jobs": {row[0]: row[1] for row in jobs},
    }
