"""sandboxes of tenants"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0013"
down_revision: str | None = "0012"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "node_door",
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("runtime", sa.Text(), nullable=False),
        sa.Column("facts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "opened_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_node_door")),
    )
    op.create_table(
        "sandbox",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("template", sa.Text(), nullable=False),
        sa.Column(
            "env_names", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.Column("env_sealed", sa.LargeBinary(), nullable=True),
        sa.Column("lifetime_s", sa.Double(), nullable=False),
        sa.Column("state", sa.Text(), server_default="requested", nullable=False),
        sa.Column("desired", sa.Text(), server_default="running", nullable=False),
        sa.Column("host_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("left_s", sa.Double(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state = 'ended') = (cause is not null)", name=op.f("ck_sandbox_cause")
        ),
        sa.CheckConstraint(
            "desired in ('running','paused','ended')", name=op.f("ck_sandbox_desired")
        ),
        sa.CheckConstraint(
            "state in ('requested','running','paused','ended')", name=op.f("ck_sandbox_state")
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_sandbox_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_sandbox_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sandbox")),
    )
    op.create_index(op.f("ix_sandbox_group_id"), "sandbox", ["group_id"], unique=False)
    op.create_index(
        "ix_sandbox_open",
        "sandbox",
        ["host_id"],
        unique=False,
        postgresql_where=sa.text("state <> 'ended'"),
    )
    op.create_index(op.f("ix_sandbox_project_id_id"), "sandbox", ["project_id", "id"], unique=False)


def downgrade() -> None:
    """Undo this revision."""
    op.drop_index(op.f("ix_sandbox_project_id_id"), table_name="sandbox")
    op.drop_index(
        "ix_sandbox_open", table_name="sandbox", postgresql_where=sa.text("state <> 'ended'")
    )
    op.drop_index(op.f("ix_sandbox_group_id"), table_name="sandbox")
    op.drop_table("sandbox")
    op.drop_table("node_door")
