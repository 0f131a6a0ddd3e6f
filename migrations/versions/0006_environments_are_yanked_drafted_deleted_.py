"""environments are yanked drafted deleted and have requirements"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.add_column("environment", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.drop_constraint(op.f("uq_environment_project_id_name"), "environment", type_="unique")
    op.create_index(
        "uq_environment_live",
        "environment",
        ["project_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.add_column(
        "environment_version",
        sa.Column("dependencies", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
    )
    op.add_column(
        "environment_version",
        sa.Column("is_draft", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column(
        "environment_version", sa.Column("yanked_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column("environment_version", sa.Column("yank_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    """Undo this revision."""
    op.drop_column("environment_version", "yank_reason")
    op.drop_column("environment_version", "yanked_at")
    op.drop_column("environment_version", "is_draft")
    op.drop_column("environment_version", "dependencies")
    op.drop_index(
        "uq_environment_live",
        table_name="environment",
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.create_unique_constraint(
        op.f("uq_environment_project_id_name"),
        "environment",
        ["project_id", "name"],
        postgresql_nulls_not_distinct=False,
    )
    op.drop_column("environment", "deleted_at")
