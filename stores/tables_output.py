"""What environments printed: a row names a small object of lines; the text itself is no column."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
)

from stores.schema import created, metadata

environment_output = Table(
    "environment_output",
    metadata,
    # Drawn when its printer had ended: ids sort by that time.
    Column("id", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    # Null: printed by the environment's process for no rollout in particular.
    Column("rollout_id", Text, ForeignKey("rollout.id")),
    # Null for a grader, which grades a rollout and not one of its tries.
    Column("try", Integer),
    Column("component", Text, nullable=False),
    Column("host_id", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("uri", Text, nullable=False),
    Column("sha", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("lines", Integer, nullable=False),
    # Earlier lines that the bound on one output did not keep.
    Column("lost", Integer, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    created(),
    CheckConstraint("component in ('environment','grader')", name="component"),
    CheckConstraint("lines > 0", name="lines"),
    Index(None, "job_id", "id"),
    Index(None, "rollout_id"),
    Index(None, "created_at"),
)
