"""Tables of what was held and used, append-only apart from an open end. `bill_line` is the ledger."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    text,
)

from stores.schema import metadata

host_interval = Table(
    "host_interval",
    metadata,
    # Intervals of a host tile the time for which it was wanted; at most one is open.
    Column("host_id", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("job_id", Text),
    Column("attempt_id", Text),
    Column("epoch", BigInteger, nullable=False),
    # Null while no keeper has the lease.
    Column("owner", Text),
    Column("opened", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("ready_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("cause", Text),
    # Length of the lease: what passed since its last renewal when it expired is proven by nobody.
    Column("ttl_s", Double),
    PrimaryKeyConstraint("host_id", "number"),
    CheckConstraint("opened in ('declared','lost')", name="opened"),
    CheckConstraint("ended_at >= started_at", name="order"),
    Index(
        "uq_host_interval_open",
        "host_id",
        unique=True,
        postgresql_where=text("ended_at is null"),
    ),
    Index(None, "attempt_id"),
)

sandbox_interval = Table(
    "sandbox_interval",
    metadata,
    Column("rollout_id", Text, ForeignKey("rollout.id"), nullable=False),
    Column("purpose", Text, nullable=False),
    # Try of an agent's sandbox, grade epoch of a grader's.
    Column("number", Integer, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("host_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("ended_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("rollout_id", "purpose", "number", "host_id", "epoch"),
    CheckConstraint("purpose in ('agent','grader')", name="purpose"),
    Index(None, "attempt_id"),
    Index(
        "ix_sandbox_interval_open",
        "host_id",
        "epoch",
        postgresql_where=text("ended_at is null"),
    ),
)

rollout_hop = Table(
    "rollout_hop",
    metadata,
    Column("rollout_id", Text, ForeignKey("rollout.id"), nullable=False),
    Column("hop", Integer, nullable=False),
    Column("try", Integer, nullable=False),
    Column("attempt_id", Text, nullable=False),
    Column("host_id", Text, nullable=False),
    Column("placed_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # Measured by its host when the placement ended; null if the host died with it.
    Column("ended_at", DateTime(timezone=True)),
    Column("engine_s", Double),
    Column("tool_wait_s", Double),
    PrimaryKeyConstraint("rollout_id", "hop"),
    Index(None, "attempt_id"),
)

bill_line = Table(
    "bill_line",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("resource", Text, nullable=False),
    Column("bucket", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("rollouts", Integer, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    PrimaryKeyConstraint("attempt_id", "resource", "bucket"),
    Index(None, "job_id"),
)
