"""models and datasets"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "dataset",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("latest_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_dataset_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_dataset_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset")),
    )
    op.create_index(op.f("ix_dataset_project_id_id"), "dataset", ["project_id", "id"], unique=False)
    op.create_index(
        "uq_dataset_name",
        "dataset",
        ["project_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.create_table(
        "model",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=False),
        sa.Column("source", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "findings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column("context_tokens", sa.Integer(), nullable=True),
        sa.Column("parameters", sa.BigInteger(), nullable=True),
        sa.Column(
            "files",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state in ('validating','ready','failed')", name=op.f("ck_model_state")),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_model_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_model_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model")),
    )
    op.create_index(op.f("ix_model_project_id_id"), "model", ["project_id", "id"], unique=False)
    op.create_index(
        "uq_model_name",
        "model",
        ["project_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.create_index(
        "uq_model_ref",
        "model",
        ["project_id", "ref"],
        unique=True,
        postgresql_where=sa.text("deleted_at is null"),
    )
    op.create_table(
        "dataset_version",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("content_sha", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "findings",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column(
            "unlisted",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.Column("files", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state in ('validating','ready','failed')", name=op.f("ck_dataset_version_state")
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["dataset.id"], name=op.f("fk_dataset_version_dataset_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_version")),
        sa.UniqueConstraint(
            "dataset_id", "content_sha", name=op.f("uq_dataset_version_dataset_id_content_sha")
        ),
        sa.UniqueConstraint(
            "dataset_id", "version", name=op.f("uq_dataset_version_dataset_id_version")
        ),
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_table("dataset_version")
    op.drop_index(
        "uq_model_ref", table_name="model", postgresql_where=sa.text("deleted_at is null")
    )
    op.drop_index(
        "uq_model_name", table_name="model", postgresql_where=sa.text("deleted_at is null")
    )
    op.drop_index(op.f("ix_model_project_id_id"), table_name="model")
    op.drop_table("model")
    op.drop_index(
        "uq_dataset_name", table_name="dataset", postgresql_where=sa.text("deleted_at is null")
    )
    op.drop_index(op.f("ix_dataset_project_id_id"), table_name="dataset")
    op.drop_table("dataset")
