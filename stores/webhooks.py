"""Webhooks of a project and what became of their deliveries, as the gateway reads and changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, insert, null, select, text, update
from sqlalchemy.engine import Row
from sqlalchemy.ext.asyncio import AsyncConnection

from stores import tables as t
from stores.environments import Owner
from stores.paging import PageOfRows, PageRequest, fetch_page

webhook, delivery = t.webhook, t.webhook_delivery


@dataclass(frozen=True, slots=True)
class DeliveriesWanted:
    """Filters of a list of deliveries."""

    state: str | None = None
    type: str | None = None


async def create(
    connection: AsyncConnection, owner: Owner, values: Mapping[str, object], count_max: int
) -> Row[Any] | None:
    """Insert a webhook; None when the project has as many as it may."""
    count = select(func.count()).where(webhook.c.project_id == owner.project_id)
    if (await connection.execute(count)).scalar_one() >= count_max:
        return None
    scope = {"organization_id": owner.organization_id, "project_id": owner.project_id}
    query = insert(webhook).values(**scope, **values).returning(webhook)
    row: Row[Any] = (await connection.execute(query)).one()
    return row


async def page(connection: AsyncConnection, project_id: str, request: PageRequest) -> PageOfRows:
    """Webhooks of the project."""
    query = select(webhook).where(webhook.c.project_id == project_id)
    return await fetch_page(connection, query, webhook.c.id, request)


async def find(
    connection: AsyncConnection, project_id: str, webhook_id: str, *, lock: bool = False
) -> Row[Any] | None:
    """A webhook of the project."""
    query = select(webhook).where(webhook.c.id == webhook_id, webhook.c.project_id == project_id)
    return (await connection.execute(query.with_for_update() if lock else query)).first()


async def change(
    connection: AsyncConnection, project_id: str, webhook_id: str, values: Mapping[str, object]
) -> Row[Any] | None:
    """Change what is given; switching it on again forgets its failures."""
    changed = dict(values)
    if changed.get("active"):
        changed |= {"failing_since": None, "disabled_at": None}
    if not changed:
        return await find(connection, project_id, webhook_id)
    query = (
        update(webhook)
        .where(webhook.c.id == webhook_id, webhook.c.project_id == project_id)
        .values(**changed)
        .returning(webhook)
    )
    row: Row[Any] | None = (await connection.execute(query)).first()
    return row


async def rotate(
    connection: AsyncConnection, project_id: str, webhook_id: str, key_check: str, *, grace_s: int
) -> Row[Any] | None:
    """Raise the generation of the secret; the former one signs too for a while."""
    until = func.now() + timedelta(seconds=grace_s) if grace_s else null()
    values = {
        "generation": webhook.c.generation + 1,
        "previous_until": until,
        "key_check": key_check,
    }
    return await change(connection, project_id, webhook_id, values)


async def delete(connection: AsyncConnection, project_id: str, webhook_id: str) -> bool:
    """Delete a webhook with its deliveries; False when there is none."""
    query = delete_from(webhook).where(
        webhook.c.id == webhook_id, webhook.c.project_id == project_id
    )
    return (await connection.execute(query)).rowcount == 1


def _deliveries(project_id: str, webhook_id: str) -> Any:
    return (
        select(delivery)
        .join(webhook, webhook.c.id == delivery.c.webhook_id)
        .where(webhook.c.id == webhook_id, webhook.c.project_id == project_id)
    )


async def deliveries(
    connection: AsyncConnection,
    project_id: str,
    webhook_id: str,
    wanted: DeliveriesWanted,
    request: PageRequest,
) -> PageOfRows:
    """Deliveries of a webhook."""
    query = _deliveries(project_id, webhook_id)
    if wanted.state is not None:
        query = query.where(delivery.c.state == wanted.state)
    if wanted.type is not None:
        query = query.where(delivery.c.type == wanted.type)
    return await fetch_page(connection, query, delivery.c.id, request)


async def find_delivery(
    connection: AsyncConnection, project_id: str, webhook_id: str, delivery_id: str
) -> Row[Any] | None:
    """One delivery of a webhook."""
    query = _deliveries(project_id, webhook_id).where(delivery.c.id == delivery_id)
    found: Row[Any] | None = (await connection.execute(query)).first()
    return found


async def redeliver(connection: AsyncConnection, webhook_id: str, delivery_id: str) -> None:
    """Try it again at once, as often as a new one; what is being sent now goes on."""
    await connection.execute(
        update(delivery)
        .where(delivery.c.webhook_id == webhook_id, delivery.c.id == delivery_id)
        .values(
            state="pending",
            tries=0,
            delivered_at=None,
            next_at=func.greatest(
                func.now(), func.coalesce(delivery.c.claimed_until, text("'-infinity'"))
            ),
        )
    )
