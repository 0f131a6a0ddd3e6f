"""ledgers"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "host_interval",
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=True),
        sa.Column("attempt_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("opened", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ready_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("ttl_s", sa.Double(), nullable=True),
        sa.CheckConstraint("opened in ('declared','lost')", name=op.f("ck_host_interval_opened")),
        sa.CheckConstraint("ended_at >= started_at", name=op.f("ck_host_interval_order")),
        sa.PrimaryKeyConstraint("host_id", "number", name=op.f("pk_host_interval")),
    )
    op.create_index(
        op.f("ix_host_interval_attempt_id"), "host_interval", ["attempt_id"], unique=False
    )
    op.create_index(
        "uq_host_interval_open",
        "host_interval",
        ["host_id"],
        unique=True,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.create_table(
        "bill_line",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("rollouts", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["attempt_id"], ["attempt.id"], name=op.f("fk_bill_line_attempt_id")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_bill_line_job_id")),
        sa.PrimaryKeyConstraint("attempt_id", "resource", "bucket", name=op.f("pk_bill_line")),
    )
    op.create_index(op.f("ix_bill_line_job_id"), "bill_line", ["job_id"], unique=False)
    op.create_table(
        "rollout_hop",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("hop", sa.Integer(), nullable=False),
        sa.Column("try", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column(
            "placed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("engine_s", sa.Double(), nullable=True),
        sa.Column("tool_wait_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollout.id"], name=op.f("fk_rollout_hop_rollout_id")
        ),
        sa.PrimaryKeyConstraint("rollout_id", "hop", name=op.f("pk_rollout_hop")),
    )
    op.create_index(op.f("ix_rollout_hop_attempt_id"), "rollout_hop", ["attempt_id"], unique=False)
    op.create_table(
        "sandbox_interval",
        sa.Column("rollout_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Text(), nullable=False),
        sa.Column("host_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "purpose in ('agent','grader')", name=op.f("ck_sandbox_interval_purpose")
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"], ["rollout.id"], name=op.f("fk_sandbox_interval_rollout_id")
        ),
        sa.PrimaryKeyConstraint(
            "rollout_id", "purpose", "number", "host_id", "epoch", name=op.f("pk_sandbox_interval")
        ),
    )
    op.create_index(
        op.f("ix_sandbox_interval_attempt_id"), "sandbox_interval", ["attempt_id"], unique=False
    )
    op.create_index(
        "ix_sandbox_interval_open",
        "sandbox_interval",
        ["host_id", "epoch"],
        unique=False,
        postgresql_where=sa.text("ended_at is null"),
    )
    op.add_column("attempt", sa.Column("billed_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_attempt_to_bill",
        "attempt",
        ["id"],
        unique=False,
        postgresql_where=sa.text("ended_at is not null and billed_at is null"),
    )
    op.create_index(
        op.f("ix_batch_member_job_id_step"), "batch_member", ["job_id", "step"], unique=False
    )
    op.add_column(
        "rollout", sa.Column("purpose", sa.Text(), server_default="train", nullable=False)
    )
    op.add_column("rollout", sa.Column("task_id", sa.Text(), server_default="", nullable=False))
    op.execute(
        "update rollout set purpose = g.purpose, task_id = g.task_id"
        " from rollout_group g where g.id = rollout.group_id"
    )
    op.add_column(
        "rollout",
        sa.Column(
            "fate",
            sa.Text(),
            sa.Computed("split_part(disposition, '('::text, 1)", persisted=True),
            nullable=True,
        ),
    )
    op.add_column(
        "rollout",
        sa.Column(
            "bucket",
            sa.Text(),
            sa.Computed(
                "CASE\n    WHEN (\"end\" = ANY (ARRAY['env_failed'::text, 'sandbox_lost'::text, 'engine_lost'::text])) THEN 'infrastructure'::text\n    WHEN (disposition = ANY (ARRAY['dropped(payload_lost)'::text, 'dropped(unsalvageable)'::text])) THEN 'infrastructure'::text\n    WHEN (purpose = 'evaluation'::text) THEN 'evaluation'::text\n    WHEN (split_part(disposition, '('::text, 1) = 'trained'::text) THEN 'trained'::text\n    WHEN (disposition = 'dropped(zero_variance)'::text) THEN 'zero_variance'::text\n    WHEN (disposition = 'dropped(stale)'::text) THEN 'stale'::text\n    WHEN (disposition = 'dropped(diverged)'::text) THEN 'diverged'::text\n    WHEN (disposition = 'pending'::text) THEN 'pending'::text\n    WHEN ((disposition = 'dropped(cancelled)'::text) OR (\"end\" = 'cancelled'::text)) THEN 'cancelled'::text\n    WHEN (\"end\" = ANY (ARRAY['truncated'::text, 'turn_limit'::text, 'context_overflow'::text, 'timeout'::text])) THEN 'truncated'::text\n    ELSE 'unscorable'::text\nEND",
                persisted=True,
            ),
            nullable=True,
        ),
    )
    op.add_column(
        "rollout",
        sa.Column(
            "reward_bin",
            sa.Integer(),
            sa.Computed(
                "width_bucket(reward, '{-100.0,-10.0,-2.0,-1.0,-0.5,0.0,1e-06,0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1.0,1.000001,2.0,5.0,10.0,100.0}'::double precision[])",
                persisted=True,
            ),
            nullable=True,
        ),
    )
    op.create_index(
        "ix_rollout_by_bucket", "rollout", ["job_id", "bucket", "id", "reward"], unique=False
    )
    op.create_index(
        "ix_rollout_by_disposition",
        "rollout",
        ["job_id", "disposition", "id", "reward"],
        unique=False,
    )
    op.create_index("ix_rollout_by_end", "rollout", ["job_id", "end", "id", "reward"], unique=False)
    op.create_index(
        "ix_rollout_by_fate", "rollout", ["job_id", "fate", "id", "reward"], unique=False
    )
    op.create_index(
        "ix_rollout_by_oldest_version",
        "rollout",
        ["job_id", "oldest_version", "id", "reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_by_purpose", "rollout", ["job_id", "purpose", "id", "reward"], unique=False
    )
    op.create_index(
        "ix_rollout_by_reward_bin",
        "rollout",
        ["job_id", "reward_bin", "id", "reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_by_task_id", "rollout", ["job_id", "task_id", "id", "reward"], unique=False
    )
    op.create_index(
        "ix_rollout_by_verdict", "rollout", ["job_id", "verdict", "id", "reward"], unique=False
    )
    op.add_column(
        "rollout_group",
        sa.Column(
            "fate",
            sa.Text(),
            sa.Computed("split_part(disposition, '('::text, 1)", persisted=True),
            nullable=True,
        ),
    )
    op.drop_index(op.f("ix_rollout_group_job_id_id"), table_name="rollout_group")
    op.create_index(
        "ix_rollout_group_by_disposition",
        "rollout_group",
        ["job_id", "disposition", "id", "mean_reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_group_by_fate",
        "rollout_group",
        ["job_id", "fate", "id", "mean_reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_group_by_policy_version",
        "rollout_group",
        ["job_id", "policy_version", "id", "mean_reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_group_by_purpose",
        "rollout_group",
        ["job_id", "purpose", "id", "mean_reward"],
        unique=False,
    )
    op.create_index(
        "ix_rollout_group_by_reward", "rollout_group", ["job_id", "id", "mean_reward"], unique=False
    )
    op.create_index(
        "ix_rollout_group_by_task_id",
        "rollout_group",
        ["job_id", "task_id", "id", "mean_reward"],
        unique=False,
    )


def downgrade() -> None:
    """Undo this revision."""
    op.drop_index("ix_rollout_group_by_task_id", table_name="rollout_group")
    op.drop_index("ix_rollout_group_by_reward", table_name="rollout_group")
    op.drop_index("ix_rollout_group_by_purpose", table_name="rollout_group")
    op.drop_index("ix_rollout_group_by_policy_version", table_name="rollout_group")
    op.drop_index("ix_rollout_group_by_fate", table_name="rollout_group")
    op.drop_index("ix_rollout_group_by_disposition", table_name="rollout_group")
    op.create_index(
        op.f("ix_rollout_group_job_id_id"), "rollout_group", ["job_id", "id"], unique=False
    )
    op.drop_column("rollout_group", "fate")
    op.drop_index("ix_rollout_by_verdict", table_name="rollout")
    op.drop_index("ix_rollout_by_task_id", table_name="rollout")
    op.drop_index("ix_rollout_by_reward_bin", table_name="rollout")
    op.drop_index("ix_rollout_by_purpose", table_name="rollout")
    op.drop_index("ix_rollout_by_oldest_version", table_name="rollout")
    op.drop_index("ix_rollout_by_fate", table_name="rollout")
    op.drop_index("ix_rollout_by_end", table_name="rollout")
    op.drop_index("ix_rollout_by_disposition", table_name="rollout")
    op.drop_index("ix_rollout_by_bucket", table_name="rollout")
    op.drop_column("rollout", "reward_bin")
    op.drop_column("rollout", "bucket")
    op.drop_column("rollout", "fate")
    op.drop_column("rollout", "task_id")
    op.drop_column("rollout", "purpose")
    op.drop_index(op.f("ix_batch_member_job_id_step"), table_name="batch_member")
    op.drop_index(
        "ix_attempt_to_bill",
        table_name="attempt",
        postgresql_where=sa.text("ended_at is not null and billed_at is null"),
    )
    op.drop_column("attempt", "billed_at")
    op.drop_index(
        "ix_sandbox_interval_open",
        table_name="sandbox_interval",
        postgresql_where=sa.text("ended_at is null"),
    )
    op.drop_index(op.f("ix_sandbox_interval_attempt_id"), table_name="sandbox_interval")
    op.drop_table("sandbox_interval")
    op.drop_index(op.f("ix_rollout_hop_attempt_id"), table_name="rollout_hop")
    op.drop_table("rollout_hop")
    op.drop_index(op.f("ix_bill_line_job_id"), table_name="bill_line")
    op.drop_table("bill_line")
    op.drop_index(
        "uq_host_interval_open",
        table_name="host_interval",
        postgresql_where=sa.text("ended_at is null"),
    )
    op.drop_index(op.f("ix_host_interval_attempt_id"), table_name="host_interval")
    op.drop_table("host_interval")
