"""Sandboxes of tenants, and the doors at which nodes serve them.

    requested -> running <-> paused
        \\-----------\\---------\\--> ended, with its cause

A row is written by the gateway (what is wanted) and by the node that has claimed it (what is so), under
that node's fence. What a node held when its lease ended is ended in the transaction that ends the lease.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from stores.schema import created, metadata

sandbox = Table(
    "sandbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    # The fork that it was asked for in; its members are claimed, admitted and started together.
    Column("group_id", Text, nullable=False),
    Column("member", Integer, nullable=False),
    Column("template", Text, nullable=False),
    Column("env_names", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    # Values of its variables under the installation's key; gone once it runs.
    Column("env_sealed", LargeBinary),
    # How long it runs from its start; pauses do not count.
    Column("lifetime_s", Double, nullable=False),
    Column("state", Text, nullable=False, server_default="requested"),
    # What its owner wants it to be.
    Column("desired", Text, nullable=False, server_default="running"),
    # Who acts on it; null until a node has claimed it.
    Column("host_id", Text),
    Column("epoch", BigInteger),
    # End of its wait, of its lifetime, or of its pause, as its state is.
    Column("ends_at", DateTime(timezone=True), nullable=False),
    # What is left of its lifetime while it is paused.
    Column("left_s", Double),
    Column("cause", Text),
    # The cause in words; of a requested one, what it waits for.
    Column("detail", Text, nullable=False, server_default=""),
    created(),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    CheckConstraint("state in ('requested','running','paused','ended')", name="state"),
    CheckConstraint("desired in ('running','paused','ended')", name="desired"),
    CheckConstraint("(state = 'ended') = (cause is not null)", name="cause"),
    Index(None, "project_id", "id"),
    Index(None, "group_id"),
    Index("ix_sandbox_open", "host_id", postgresql_where=text("state <> 'ended'")),
)

node_door = Table(
    "node_door",
    metadata,
    Column("host_id", Text, primary_key=True),
    # It is open while the lease has this epoch.
    Column("epoch", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    # What whoever calls there proves to know.
    Column("key", LargeBinary, nullable=False),
    Column("runtime", Text, nullable=False),
    # What its runtime can do, and the limits of a sandbox.
    Column("facts", JSONB, nullable=False),
    Column("opened_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)
