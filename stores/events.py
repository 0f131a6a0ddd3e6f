"""Job events: per-job sequence numbers taken under the job's row lock, so that none is skipped."""

from collections.abc import Mapping

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import outbox
from stores import tables as t


async def append(
    connection: AsyncConnection, job_id: str, type: str, body: Mapping[str, object]
) -> int:
    """Append one event to the job and return its sequence number; 0 when there is no such job."""
    taken = await connection.execute(
        update(t.job)
        .where(t.job.c.id == job_id)
        .values(event_seq=t.job.c.event_seq + 1)
        .returning(t.job.c.event_seq)
    )
    seq: int | None = taken.scalar_one_or_none()
    if seq is None:
        return 0
    await connection.execute(
        insert(t.job_event).values(job_id=job_id, seq=seq, type=type, body=dict(body))
    )
    await outbox.enqueue(connection, job_id, seq, type)
    return seq
