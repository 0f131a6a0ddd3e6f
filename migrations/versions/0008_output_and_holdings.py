"""what environments print; checkpoints that are kept, expire and are exported; deleted jobs"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "environment_output",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("rollout_id", sa.Text(), nullable=True),
        sa.Column("try", sa.Integer(), nullable=True),
        sa.Column("component", sa.Text(), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "component in ('environment','grader')", name=op.f("ck_environment_output_component")
        ),
        sa.CheckConstraint("lines > 0", name=op.f("ck_environment_output_lines")),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_environment_output_attempt_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_environment_output_job_id")),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollout.id"], name=op.f("fk_environment_output_rollout_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_environment_output")),
    )
    op.create_index(
        op.f("ix_environment_output_created_at"), "environment_output", ["created_at"], unique=False
    )
    op.create_index(
        op.f("ix_environment_output_job_id_id"),
        "environment_output",
        ["job_id", "id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_environment_output_rollout_id"), "environment_output", ["rollout_id"], unique=False
    )
    op.add_column(
        "checkpoint",
        sa.Column("keep", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("checkpoint", sa.Column("ttl_days", sa.Integer(), nullable=True))
    op.add_column("checkpoint", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "checkpoint", sa.Column("export", postgresql.JSONB(astext_type=sa.Text()), nullable=True)
    )
    op.add_column("checkpoint", sa.Column("cleaned_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_checkpoint_due",
        "checkpoint",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'ready' and not keep and expires_at is not null"),
    )
    op.create_index(
        "ix_checkpoint_to_clean",
        "checkpoint",
        ["job_id"],
        unique=False,
        postgresql_where=sa.text("state = 'expired' and cleaned_at is null"),
    )
    op.add_column("job", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("job", sa.Column("cleaned_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_job_to_clean",
        "job",
        ["id"],
        unique=False,
        postgresql_where=sa.text("deleted_at is not null and cleaned_at is null"),
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_index(
        "ix_job_to_clean",
        table_name="job",
        postgresql_where=sa.text("deleted_at is not null and cleaned_at is null"),
    )
    op.drop_column("job", "cleaned_at")
    op.drop_column("job", "deleted_at")
    op.drop_index(
        "ix_checkpoint_to_clean",
        table_name="checkpoint",
        postgresql_where=sa.text("state = 'expired' and cleaned_at is null"),
    )
    op.drop_index(
        "ix_checkpoint_due",
        table_name="checkpoint",
        postgresql_where=sa.text("state = 'ready' and not keep and expires_at is not null"),
    )
    op.drop_column("checkpoint", "cleaned_at")
    op.drop_column("checkpoint", "export")
    op.drop_column("checkpoint", "expires_at")
    op.drop_column("checkpoint", "ttl_days")
    op.drop_column("checkpoint", "keep")
    op.drop_index(op.f("ix_environment_output_rollout_id"), table_name="environment_output")
    op.drop_index(op.f("ix_environment_output_job_id_id"), table_name="environment_output")
    op.drop_index(op.f("ix_environment_output_created_at"), table_name="environment_output")
    op.drop_table("environment_output")
