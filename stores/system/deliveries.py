"""Deliveries as their senders see them: claimed for a while, sent outside any transaction, marked.

    pending --claim (tries + 1)--> pending, claimed --mark--> delivered
                                        |    '------mark----> pending, later; or failed
                                        '-- the sender died: free again when the claim ends

A sender that dies after it sent leaves the delivery claimed: it is sent again with the same id, at
least once and never lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from infra.ids import IdSource
from stores import audit, outbox
from stores import tables as t

webhook, delivery, event = t.webhook, t.webhook_delivery, t.job_event

ATTEMPTS_KEPT: Final = 20
"""Of one delivery, shown to people; the number of tries is bounded apart from it."""

KEPT: Final = timedelta(days=30)
"""Ended deliveries are shown for so long."""

PURGED_MAX: Final = 1000
"""Old deliveries that one pass takes away."""

CLAIM: Final = text(
    """
    update webhook_delivery d
    set tries = tries + 1, claimed_until = now() + make_interval(secs => :claim_s),
        next_at = now() + make_interval(secs => :claim_s)
    from (
        select picked.id from webhook w cross join lateral (
            select one.id from webhook_delivery one
            where one.webhook_id = w.id and one.state = 'pending' and one.next_at <= now()
            order by one.next_at, one.id
            limit greatest(0, :per_webhook - (
                select count(*) from webhook_delivery busy
                where busy.webhook_id = w.id and busy.claimed_until is not null
                    and busy.claimed_until > now()))
            for update skip locked
        ) picked
        where w.active
        limit :count
    ) due
    where d.id = due.id
    returning d.id
    """
)

IS_DUE: Final = text(
    """
    select exists (
        select from webhook w where w.active and exists (
            select from webhook_delivery d
            where d.webhook_id = w.id and d.state = 'pending' and d.next_at <= now())
    ) and not exists (
        select from webhook_delivery d
        where d.claimed_until is not null and d.claimed_until > now())
    """
)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that this process may send, until its claim ends."""

    id: str
    webhook_id: str
    url: str
    generation: int
    signs_twice: bool
    """The former secret signs too."""
    key_check: str
    event_id: str
    type: str
    job_id: str | None
    seq: int | None
    body: Mapping[str, Any] | None
    """None when its event is gone."""
    happened_at: datetime
    tries: int
    attempts: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that did not arrive. `again_in_s` None: it was the last one."""

    attempt: Mapping[str, Any]
    again_in_s: float | None
    disable_after_s: float


async def is_due(connection: AsyncConnection) -> bool:
    """Whether something waits to be sent and nobody is sending."""
    return bool((await connection.execute(IS_DUE)).scalar_one())


async def claim(
    connection: AsyncConnection, count: int, per_webhook: int, claim_s: float
) -> list[Claimed]:
    """Take up to `count` due deliveries, and of one webhook no more than it may have under way."""
    bounds = {"count": count, "per_webhook": per_webhook, "claim_s": claim_s}
    taken = (await connection.execute(CLAIM, bounds)).scalars().all()
    if not taken:
        return []
    is_graced = func.coalesce(webhook.c.previous_until > func.now(), False)
    query = (
        select(
            delivery,
            webhook.c.url,
            webhook.c.generation,
            webhook.c.key_check,
            is_graced.label("signs_twice"),
            func.coalesce(delivery.c.body, event.c.body).label("said"),
            func.coalesce(event.c.created_at, delivery.c.created_at).label("happened_at"),
        )
        .join(webhook, webhook.c.id == delivery.c.webhook_id)
        .outerjoin(event, (event.c.job_id == delivery.c.job_id) & (event.c.seq == delivery.c.seq))
        .where(delivery.c.id.in_(taken))
        .order_by(delivery.c.id)
    )
    return [_claimed(row) for row in await connection.execute(query)]


def _claimed(row: Any) -> Claimed:
    return Claimed(
        id=row.id,
        webhook_id=row.webhook_id,
        url=row.url,
        generation=row.generation,
        signs_twice=row.signs_twice,
        key_check=row.key_check,
        event_id=row.event_id,
        type=row.type,
        job_id=row.job_id,
        seq=row.seq,
        body=row.said,
        happened_at=row.happened_at,
        tries=row.tries,
        attempts=row.attempts,
    )


async def mark_delivered(
    connection: AsyncConnection, one: Claimed, attempt: Mapping[str, Any]
) -> None:
    """It has arrived; its webhook works."""
    await connection.execute(
        update(delivery)
        .where(delivery.c.id == one.id)
        .values(
            state="delivered",
            delivered_at=func.now(),
            claimed_until=None,
            attempts=_with(one, attempt),
        )
    )
    await connection.execute(
        update(webhook)
        .where(webhook.c.id == one.webhook_id, webhook.c.failing_since.is_not(None))
        .values(failing_since=None)
    )


async def mark_failed(connection: AsyncConnection, one: Claimed, failure: Failure) -> bool:
    """It is tried later, or has failed; whether its webhook was switched off for it.

    Only the try that is marked counts: one that was claimed again meanwhile is another sender's.
    """
    again = failure.again_in_s
    changed = await connection.execute(
        update(delivery)
        .where(
            delivery.c.id == one.id,
            delivery.c.state == "pending",
            delivery.c.tries == one.tries,
        )
        .values(
            state="failed" if again is None else "pending",
            next_at=func.now() + timedelta(seconds=again or 0.0),
            claimed_until=None,
            attempts=_with(one, failure.attempt),
        )
    )
    if changed.rowcount == 0:
        return False
    await connection.execute(
        update(webhook)
        .where(webhook.c.id == one.webhook_id, webhook.c.failing_since.is_(None))
        .values(failing_since=func.now())
    )
    return await _disable(connection, one.webhook_id, failure.disable_after_s)


def _with(one: Claimed, attempt: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*one.attempts, attempt][-ATTEMPTS_KEPT:]


async def _disable(connection: AsyncConnection, webhook_id: str, after_s: float) -> bool:
    """Switch a webhook off that only failed for so long, and tell: audit, and other webhooks."""
    late = func.now() - timedelta(seconds=after_s)
    query = (
        update(webhook)
        .where(webhook.c.id == webhook_id, webhook.c.active, webhook.c.failing_since < late)
        .values(active=False, disabled_at=func.now())
        .returning(webhook)
    )
    row = (await connection.execute(query)).first()
    if row is None:
        return False
    await audit.append(
        connection,
        audit.AuditEvent(
            id=IdSource().new(audit.ID_PREFIX),
            organization_id=row.organization_id,
            project_id=row.project_id,
            actor=audit.SYSTEM,
            action="webhooks.disable",
            target=row.id,
            part=None,
            created=None,
            address="",
            request_id="",
            outcome="done",
        ),
    )
    # Its address stays out: it may hold a token, and other receivers are other people's.
    body = {"webhook_id": row.id, "failing_since": row.failing_since.isoformat()}
    for other in await outbox.wanting(connection, row.project_id, outbox.DISABLED):
        await outbox.enqueue_own(connection, other, outbox.DISABLED, body)
    return True


async def purge(connection: AsyncConnection) -> int:
    """Take away some deliveries that ended long ago; how many."""
    old = (
        select(delivery.c.id)
        .where(delivery.c.state != "pending", delivery.c.created_at < func.now() - KEPT)
        .limit(PURGED_MAX)
    )
    result = await connection.execute(delete(delivery).where(delivery.c.id.in_(old)))
    return int(result.rowcount)
