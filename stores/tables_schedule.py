"""What a job's groups and rollouts wait for at the moment, as the leader says it."""

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    PrimaryKeyConstraint,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from stores.schema import metadata

job_schedule = Table(
    "job_schedule",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), primary_key=True),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    # Order of the groups that are shown, counts of all lanes, and what bounds them.
    Column("head", JSONB, nullable=False, server_default=text("'{}'")),
    Column("profile", JSONB, nullable=False, server_default=text("'{}'")),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# A row per live group, so that a turn of one rewrites a kilobyte and not the whole schedule.
job_schedule_group = Table(
    "job_schedule_group",
    metadata,
    Column("job_id", Text, ForeignKey("job.id"), nullable=False),
    # No foreign key: the leader shows a group that it has decided to open before its row is there.
    Column("group_id", Text, nullable=False),
    Column("body", JSONB, nullable=False),
    PrimaryKeyConstraint("job_id", "group_id"),
)
