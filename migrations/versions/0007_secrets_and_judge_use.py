"""secrets and judge use"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "secret",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_secret_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_secret_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_secret")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_secret_project_id_name")),
    )
    op.create_index(op.f("ix_secret_project_id_id"), "secret", ["project_id", "id"], unique=False)
    op.create_table(
        "judge_use",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_judge_use_attempt_id")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollout.id"], name=op.f("fk_judge_use_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "judge", name=op.f("pk_judge_use")),
    )
    op.create_index(op.f("ix_judge_use_attempt_id"), "judge_use", ["attempt_id"], unique=False)


def downgrade() -> None:
    """Undo this revision."""
    op.drop_index(op.f("ix_judge_use_attempt_id"), table_name="judge_use")
    op.drop_table("judge_use")
    op.drop_index(op.f("ix_secret_project_id_id"), table_name="secret")
    op.drop_table("secret")
