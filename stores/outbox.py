"""The outbox of webhooks: an event and its deliveries are written in one transaction, or neither is."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import any_, insert, literal, or_, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.ids import IdSource
from infra.signatures import event_id
from stores import tables as t

webhook, delivery = t.webhook, t.webhook_delivery

ID_PREFIX: Final = "dlv"

DISABLED: Final = "webhook.disabled"
"""Event of a project: one of its webhooks failed for too long and was switched off."""

TEST: Final = "webhook.test"
"""Event that a user asked for, to see whether it arrives."""

_IDS: Final = IdSource()


async def enqueue(connection: AsyncConnection, job_id: str, seq: int, type: str) -> None:
    """Write a delivery of a job's event for every webhook of its project that wants the type."""
    job = t.job
    query = (
        select(webhook.c.id)
        .join(job, job.c.project_id == webhook.c.project_id)
        .where(job.c.id == job_id, webhook.c.active, _wants(type))
    )
    wanting = (await connection.execute(query)).scalars().all()
    rows = [
        {
            "id": _IDS.new(ID_PREFIX),
            "webhook_id": one,
            "event_id": event_id(job_id, seq),
            "type": type,
            "job_id": job_id,
            "seq": seq,
        }
        for one in wanting
    ]
    if rows:
        await connection.execute(upsert(delivery).on_conflict_do_nothing(), rows)


async def enqueue_own(
    connection: AsyncConnection, webhook_id: str, type: str, body: Mapping[str, Any]
) -> str:
    """Write a delivery of an event that no job has, to one webhook; its id."""
    id = _IDS.new(ID_PREFIX)
    event = f"evt_{_IDS.ulid()}"
    row = {"id": id, "webhook_id": webhook_id, "event_id": event, "type": type, "body": dict(body)}
    await connection.execute(insert(delivery).values(row))
    return id


async def wanting(connection: AsyncConnection, project_id: str, type: str) -> list[str]:
    """Active webhooks of the project that want this type of event."""
    query = select(webhook.c.id).where(
        webhook.c.project_id == project_id, webhook.c.active, _wants(type)
    )
    return sorted((await connection.execute(query)).scalars())


def _wants(type: str) -> Any:
    kind = f"{type.partition('.')[0]}.*"
    return or_(*(literal(one) == any_(webhook.c.types) for one in (type, kind, "*")))
