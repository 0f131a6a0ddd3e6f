"""Who did what: one row a mutating call, which a trigger keeps from being changed or removed.

No foreign keys: a row outlives everything that it names.
"""

from sqlalchemy import CheckConstraint, Column, Index, Table, Text

from stores.schema import created, metadata

audit_event = Table(
    "audit_event",
    metadata,
    Column("id", Text, primary_key=True),
    # Scope of the key that called; both null for the installation's admin key.
    Column("organization_id", Text),
    Column("project_id", Text),
    # Id of the key, or `system`.
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    # The object that the address names first, what else it names, and what the call made.
    Column("target", Text),
    Column("part", Text),
    Column("created", Text),
    Column("address", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    # Problem code of a refusal.
    Column("code", Text),
    created(),
    CheckConstraint("outcome in ('done','refused')", name="outcome"),
    Index(None, "organization_id", "id"),
    Index(None, "project_id", "id"),
    Index(None, "actor", "id"),
    Index(None, "project_id", "action", "id"),
    Index(None, "target", "id"),
    Index(None, "created", "id"),
)
