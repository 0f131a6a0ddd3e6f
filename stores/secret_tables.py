"""Tables of what a project keeps secret, and of what its rollouts asked judges."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    func,
)

from stores.schema import created, metadata

secret = Table(
    "secret",
    metadata,
    Column("id", Text, primary_key=True),
    Column("organization_id", Text, ForeignKey("organization.id"), nullable=False),
    Column("project_id", Text, ForeignKey("project.id"), nullable=False),
    Column("name", Text, nullable=False),
    # Sealed by `infra.vault` for this project and name; a deleted secret leaves no row.
    Column("sealed", LargeBinary, nullable=False),
    created(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    UniqueConstraint("project_id", "name"),
    Index(None, "project_id", "id"),
)

judge_use = Table(
    "judge_use",
    metadata,
    # One row a rollout and judge, written with its verdict: a repeated grading counts once.
    Column("rollout_id", Text, ForeignKey("rollout.id"), nullable=False),
    Column("judge", Text, nullable=False),
    Column("attempt_id", Text, ForeignKey("attempt.id"), nullable=False),
    Column("calls", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
    created(),
    PrimaryKeyConstraint("rollout_id", "judge"),
    Index(None, "attempt_id"),
)
