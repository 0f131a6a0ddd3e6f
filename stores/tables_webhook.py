"""Webhooks and their deliveries: one row for each pair of a webhook and an event.

A delivery is written in the transaction of its event, so that none is lost. Its body is the event's
row; only events that no job has carry one of their own.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from stores.schema import created, metadata

webhook = Table(
    "webhook",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("url", Text, nullable=False),
    Column("types", ARRAY(Text), nullable=False),
    Column("description", Text, nullable=False),
    Column("active", Boolean, nullable=False),
    # The secret is derived from the installation's key, the id and this number; it is stored nowhere.
    Column("generation", Integer, nullable=False, server_default="1"),
    # Until then the secret of the generation before signs too.
    Column("previous_until", DateTime(timezone=True)),
    # Tells whether the installation's key is still the one that the shown secret was derived from.
    Column("key_check", Text, nullable=False),
    # First failure since the last success.
    Column("failing_since", DateTime(timezone=True)),
    # When it was switched off because it failed for too long.
    Column("disabled_at", DateTime(timezone=True)),
    created(),
    Index(None, "project_id", "id"),
)

webhook_delivery = Table(
    "webhook_delivery",
    metadata,
    Column("id", Text, primary_key=True),
    Column("webhook_id", Text, ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False),
    # The same for all webhooks and all tries: receivers tell duplicates by it.
    Column("event_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("job_id", Text),
    Column("seq", BigInteger),
    Column("body", JSONB),
    Column("state", Text, nullable=False, server_default="pending"),
    # Counted before each try, so that one which ends its sender is counted too.
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("next_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("claimed_until", DateTime(timezone=True)),
    # The last tries: {at, status, code, seconds, response}.
    Column("attempts", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("delivered_at", DateTime(timezone=True)),
    created(),
    CheckConstraint("state in ('pending','delivered','failed')", name="state"),
    UniqueConstraint("webhook_id", "event_id"),
    Index(None, "webhook_id", "id"),
    Index(
        "ix_webhook_delivery_due",
        "webhook_id",
        "next_at",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "ix_webhook_delivery_claimed",
        "webhook_id",
        postgresql_where=text("claimed_until is not null"),
    ),
    Index("ix_webhook_delivery_ended", "created_at", postgresql_where=text("state <> 'pending'")),
)
