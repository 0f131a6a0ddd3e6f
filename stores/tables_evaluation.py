"""Finished evaluations, and which of its job's environments a group belongs to."""

from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from stores.schema import created, metadata

evaluation = Table(
    "evaluation",
    metadata,
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("tasks", Integer, nullable=False),
    Column("scored", Integer, nullable=False),
    Column("unscorable", Integer, nullable=False),
    Column("score", Double),
    Column("seconds", Double, nullable=False),
    Column("estimates", JSONB, nullable=False, server_default=text("'[]'")),
    # Means of reward components and metrics by name.
    Column("components", JSONB, nullable=False, server_default=text("'{}'")),
    # The same numbers of each environment, where there are several or they have names of their own.
    Column("environments", JSONB, nullable=False, server_default=text("'[]'")),
    # Value of the job's `evaluation.select_best`: what the best checkpoint is chosen by.
    Column("selected", Double),
    created(),
    PrimaryKeyConstraint("attempt_id", "step"),
)


def environment_column() -> Column[int]:
    """Place of a group's environment in the spec: in `evaluation.environments` for a group that
    evaluates on those, else in `environments`."""
    return Column("environment", Integer, nullable=False, server_default="0")
