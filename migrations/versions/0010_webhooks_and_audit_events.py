"""webhooks and audit events"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


REFUSE = """
create function refuse_change() returns trigger language plpgsql as $$
begin
    raise exception '% is append-only', tg_table_name using errcode = 'insufficient_privilege';
end
$$
"""

ON_ROWS = """
create trigger audit_event_stays before update or delete on audit_event
for each row execute function refuse_change()
"""

ON_ALL = """
create trigger audit_event_stays_whole before truncate on audit_event
for each statement execute function refuse_change()
"""


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "audit_event",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=True),
        sa.Column("project_id", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("part", sa.Text(), nullable=True),
        sa.Column("created", sa.Text(), nullable=True),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint("outcome in ('done','refused')", name=op.f("ck_audit_event_outcome")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_event")),
    )
    op.create_index(op.f("ix_audit_event_actor_id"), "audit_event", ["actor", "id"], unique=False)
    op.create_index(
        op.f("ix_audit_event_created_id"), "audit_event", ["created", "id"], unique=False
    )
    op.create_index(
        op.f("ix_audit_event_organization_id_id"),
        "audit_event",
        ["organization_id", "id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_audit_event_project_id_action_id"),
        "audit_event",
        ["project_id", "action", "id"],
        unique=False,
    )
    op.create_index(
        op.f("ix_audit_event_project_id_id"), "audit_event", ["project_id", "id"], unique=False
    )
    op.create_index(op.f("ix_audit_event_target_id"), "audit_event", ["target", "id"], unique=False)
    for statement in (REFUSE, ON_ROWS, ON_ALL):
        op.execute(statement)
    op.create_table(
        "webhook",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), server_default="1", nullable=False),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("key_check", sa.Text(), nullable=False),
        sa.Column("failing_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["organization_id"], ["organization.id"], name=op.f("fk_webhook_organization_id")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name=op.f("fk_webhook_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook")),
    )
    op.create_index(op.f("ix_webhook_project_id_id"), "webhook", ["project_id", "id"], unique=False)
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("webhook_id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "next_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "attempts",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'[]'::jsonb"),
            nullable=False,
        ),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state in ('pending','delivered','failed')", name=op.f("ck_webhook_delivery_state")
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhook.id"],
            name=op.f("fk_webhook_delivery_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_delivery")),
        sa.UniqueConstraint(
            "webhook_id", "event_id", name=op.f("uq_webhook_delivery_webhook_id_event_id")
        ),
    )
    op.create_index(
        "ix_webhook_delivery_claimed",
        "webhook_delivery",
        ["webhook_id"],
        unique=False,
        postgresql_where=sa.text("claimed_until is not null"),
    )
    op.create_index(
        "ix_webhook_delivery_due",
        "webhook_delivery",
        ["webhook_id", "next_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_webhook_delivery_ended",
        "webhook_delivery",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("state <> 'pending'"),
    )
    op.create_index(
        op.f("ix_webhook_delivery_webhook_id_id"),
        "webhook_delivery",
        ["webhook_id", "id"],
        unique=False,
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_index(op.f("ix_webhook_delivery_webhook_id_id"), table_name="webhook_delivery")
    op.drop_index(
        "ix_webhook_delivery_ended",
        table_name="webhook_delivery",
        postgresql_where=sa.text("state <> 'pending'"),
    )
    op.drop_index(
        "ix_webhook_delivery_due",
        table_name="webhook_delivery",
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.drop_index(
        "ix_webhook_delivery_claimed",
        table_name="webhook_delivery",
        postgresql_where=sa.text("claimed_until is not null"),
    )
    op.drop_table("webhook_delivery")
    op.drop_index(op.f("ix_webhook_project_id_id"), table_name="webhook")
    op.drop_table("webhook")
    op.drop_index(op.f("ix_audit_event_target_id"), table_name="audit_event")
    op.drop_index(op.f("ix_audit_event_project_id_id"), table_name="audit_event")
    op.drop_index(op.f("ix_audit_event_project_id_action_id"), table_name="audit_event")
    op.drop_index(op.f("ix_audit_event_organization_id_id"), table_name="audit_event")
    op.drop_index(op.f("ix_audit_event_created_id"), table_name="audit_event")
    op.drop_index(op.f("ix_audit_event_actor_id"), table_name="audit_event")
    op.drop_table("audit_event")
    op.execute("drop function refuse_change()")
